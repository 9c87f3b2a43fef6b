"""Your own classifier as one more source of `pusl fuse`.

python docs/examples/fuse_your_classifier.py WORK

Takes under a minute. The classifier here is scikit-learn's.
Any program that writes predictions will do.
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
    lines = (work / f"shop/{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


sizes = ["--items", "1500", "--dev-items", "200", "--test-items", "200"]
pusl("data", "simulate", "--out", "shop", *sizes)

# Your classifier: words of the title -> the 200 most frequent labels.
train = read("train")
count: dict[str, int] = {}
for item in train:
    for phrase in item["keyphrases"]:
        count[phrase] = count.get(phrase, 0) + 1
frequent = sorted(count, key=count.get, reverse=True)[:200]
known = [[p for p in item["keyphrases"] if p in frequent] for item in train]
labels = MultiLabelBinarizer(classes=frequent)
targets = labels.fit_transform(known)
words = TfidfVectorizer(sublinear_tf=True)
features = words.fit_transform([item["text"] for item in train])
one_label = SGDClassifier(loss="log_loss", alpha=1e-5, random_state=0)
model = OneVsRestClassifier(one_label).fit(features, targets)


def predict(name: str, k: int = 20) -> str:
    """Writes the classifier's k best labels as a file that PUSL reads."""
    items = read(name)
    features = words.transform([item["text"] for item in items])
    with open(work / f"mine-{name}.jsonl", "w") as file:
        for item, row in zip(items, model.predict_proba(features), strict=True):
            best = row.argsort()[::-1][:k]
            record = {
                "id": item["id"],
                "keyphrases": [str(labels.classes_[i]) for i in best],
                "scores": [float(row[i]) for i in best],
            }
            print(json.dumps(record), file=file)
    return f"mine=mine-{name}.jsonl"


# On the dev items, `pusl fuse` learns how far to trust your classifier.
train_dev = ["--train", "shop/train.jsonl", "--dev", "shop/dev.jsonl"]
sources = ["knn", "text", predict("dev")]
pusl("fuse", *train_dev, "--sources", *sources, "--out", "fused")

# For new items, it needs the classifier's predictions again.
files = ["--input", "shop/test.jsonl", "--output", "fused.jsonl"]
more = ["-k", "5", "--source", predict("test")]
pusl("generate", "--model", "fused", *files, *more)

files = ["--references", "shop/test.jsonl", "--train", "shop/train.jsonl"]
systems = ["fused=fused.jsonl", "mine=mine-test.jsonl"]
pusl("evaluate", *files, "--predictions", *systems, "--k", "5")
