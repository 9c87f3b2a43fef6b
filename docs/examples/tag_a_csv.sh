# Tag a CSV: from a table of products to keyphrases for the untagged ones.
#
#   bash docs/examples/tag_a_csv.sh WORK
#
# Takes under a minute. It makes its own table.
# To use yours, put items.csv into WORK.
set -eu
cd "$1"

# A table with a title and tags: what most people have.
if [ ! -f items.csv ]; then
  pusl data simulate --out shop --items 900 \
      --dev-items 100 --test-items 100 --seed 1
  python - <<'PYTHON'
import csv, json

with open("items.csv", "w", newline="") as file:
    rows = csv.writer(file, delimiter=",")
    rows.writerow(["sku", "title", "tags"])
    for line in open("shop/train.jsonl"):
        item = json.loads(line)
        rows.writerow([item["id"], item["text"], ";".join(item["keyphrases"])])
PYTHON
fi

pusl data convert items.csv --to all.jsonl --id-column sku \
    --text-column title --keyphrases-column tags --separator ";"
pusl data split all.jsonl --out data --seed 0

# Similar items, a linear SVM and the text in one ranking: seconds, no GPU.
# A trained model (pusl=models/pusl) would be one more source.
# It also finds labels that nobody has used yet.
pusl fuse --train data/train.jsonl --dev data/dev.jsonl \
    --sources knn svm text --out models/fused

# At most five keyphrases for each item, as a table again.
# A score is the probability that a phrase is a label.
pusl generate --model models/fused --input data/test.jsonl \
    --output tagged.csv -k 5 --min-score 0.1
head -3 tagged.csv
