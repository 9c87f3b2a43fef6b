# Complete a catalog: more keyphrases for items that have a few.
#
#   bash docs/examples/complete_a_catalog.sh WORK
#
# Takes under a minute on a simulated shop, whose complete labels are known.
set -eu
cd "$1"
pusl data simulate --out shop --seed 2 \
    --items 1200 --dev-items 100 --test-items 100
pusl train --paradigm pusl --model scratch:tiny \
    --train shop/train.jsonl --dev shop/dev.jsonl \
    --out models/pusl --max-steps 60 --restart 0.2
pusl fuse --train shop/train.jsonl --dev shop/dev.jsonl \
    --sources pusl=models/pusl knn text --out models/fused

# --complete: k keyphrases that the item does not have yet.
pusl generate --model models/fused --input shop/test.jsonl \
    --output more.jsonl -k 5 --complete

# How many are right? complete.jsonl has every right keyphrase.
# Leave out those that the items already had.
python - <<'PYTHON'
import json

def read(path):
    return {item["id"]: item for item in map(json.loads, open(path))}

items, truth = read("shop/test.jsonl"), read("shop/complete.jsonl")
with open("missing.jsonl", "w") as file:
    for id, item in items.items():
        had = item["keyphrases"]
        missing = [p for p in truth[id]["keyphrases"] if p not in had]
        print(json.dumps({"id": id, "keyphrases": missing}), file=file)
PYTHON
pusl evaluate --references missing.jsonl --predictions more.jsonl --k 1 3 5
