"""Fuse with your own classifier: its predictions become one more source of `pusl fuse`.

python docs/examples/fuse_your_classifier.py WORK

Takes under a minute. The classifier here is scikit-learn's; any program that writes predictions will do.
"""

import json
import subprocess
import sys
from pathlib import Path

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import SGDClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import MultiLabelBinarizer

work = Path(sys.argv[1])


def pusl(*words: str) -> None:
    """Runs one command of PUSL in the work folder."""
    subprocess.run([sys.executable, "-m", "pusl", *words], cwd=work, check=True)


def read(name: str) -> list[dict]:
    """The items of one file of the shop."""
    return [json.loads(line) for line in (work / "shop" / f"{name}.jsonl").read_text().splitlines()]


pusl("data", "simulate", "--out", "shop", "--items", "1500", "--dev-items", "200", "--test-items", "200")

# Your classifier: words of the title -> the 200 most frequent labels.
train = read("train")
count: dict[str, int] = {}
for item in train:
    for phrase in item["keyphrases"]:
        count[phrase] = count.get(phrase, 0) + 1
labels = MultiLabelBinarizer(classes=sorted(count, key=count.get, reverse=True)[:200])
words = TfidfVectorizer(sublinear_tf=True)
features = words.fit_transform([item["text"] for item in train])
targets = labels.fit_transform([[p for p in item["keyphrases"] if p in set(labels.classes)] for item in train])
model = OneVsRestClassifier(SGDClassifier(loss="log_loss", alpha=1e-5, random_state=0)).fit(features, targets)


def predict(name: str, k: int = 20) -> str:
    """Writes the classifier's k best labels for one file, in the form that PUSL reads."""
    items = read(name)
    scores = model.predict_proba(words.transform([item["text"] for item in items]))
    with open(work / f"mine-{name}.jsonl", "w") as file:
        for item, row in zip(items, scores, strict=True):
            best = row.argsort()[::-1][:k]
            record = {"id": item["id"], "keyphrases": [str(labels.classes_[i]) for i in best]}
            print(json.dumps({**record, "scores": [float(row[i]) for i in best]}), file=file)
    return f"mine=mine-{name}.jsonl"


# For the dev items it learns how far to trust your classifier; for new items it needs its predictions again.
sources = ["knn", "text", predict("dev")]
pusl("fuse", "--train", "shop/train.jsonl", "--dev", "shop/dev.jsonl", "--sources", *sources, "--out", "fused")
files = ["--model", "fused", "--input", "shop/test.jsonl", "--output", "fused.jsonl"]
pusl("generate", *files, "-k", "5", "--source", predict("test"))
files = ["--references", "shop/test.jsonl", "--predictions", "fused=fused.jsonl", "mine=mine-test.jsonl"]
pusl("evaluate", *files, "--train", "shop/train.jsonl", "--k", "5")
