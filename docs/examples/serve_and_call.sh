# Serve a model and call it from JavaScript.
#
#   bash docs/examples/serve_and_call.sh WORK
#
# Needs Node.js 18 or newer and `pip install -e '.[serve]'`.
# Takes under a minute.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$1"
pusl data simulate --out shop --items 900 \
    --dev-items 100 --test-items 100 --seed 4
pusl fuse --train shop/train.jsonl --dev shop/dev.jsonl \
    --sources knn text --out models/fused

pusl serve --model models/fused --port 0 > serve.log 2>&1 &
trap 'kill $!' EXIT
until grep -q '"event": "ready"' serve.log; do
  kill -0 $! || { cat serve.log; exit 1; }  # it did not start
  sleep 0.5
done
node "$here/call.mjs" "$(grep -o 'http://[0-9.:]*' serve.log | head -1)"
