# Tag a CSV: from a table with tags to keyphrases for another without.
#
#   bash docs/examples/tag_a_csv.sh WORK
#
# Takes under a minute. It makes its own tables.
# To use yours, put tagged.csv and new.csv into WORK.
set -eu
cd "$1"

# A table with titles and tags, and one with titles only.
if [ ! -f tagged.csv ]; then
  pusl data simulate --out shop --seed 1 \
      --items 900 --dev-items 100 --test-items 100
  python - <<'PYTHON'
import csv, json

def table(source, target, tags):
    rows = [["sku", "title"] + ["tags"] * tags]
    for item in map(json.loads, open(source)):
        row = [item["id"], item["text"]]
        labels = ";".join(item["keyphrases"])
        rows.append(row + [labels] * tags)
    with open(target, "w", newline="") as file:
        csv.writer(file).writerows(rows)

table("shop/train.jsonl", "tagged.csv", tags=True)
table("shop/test.jsonl", "new.csv", tags=False)
PYTHON
fi

pusl data convert tagged.csv --to all.jsonl --id-column sku \
    --text-column title --keyphrases-column tags --separator ";"
pusl data split all.jsonl --out data --seed 0

# Similar items, a linear SVM and the text in one ranking: seconds, no GPU.
# A trained model (pusl=models/pusl) would be one more source,
# and would also find labels that nobody has used yet.
pusl fuse --train data/train.jsonl --dev data/dev.jsonl \
    --sources knn svm text --out models/fused

# At most five keyphrases for each new item, as a table again.
# A score is the probability that a phrase is a label.
pusl generate --model models/fused --input new.csv --id-column sku \
    --text-column title --output keyphrases.csv -k 5 --min-score 0.1
head -3 keyphrases.csv
