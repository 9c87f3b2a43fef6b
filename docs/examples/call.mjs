// Keyphrases from a PUSL service:
// node call.mjs http://127.0.0.1:8000
const address = process.argv[2];

const texts = [
  "Folding drone with a 4k camera",
  "Trail running shoe, waterproof",
];
const response = await fetch(`${address}/v1/keyphrases`, {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify({ texts, k: 3 }),
});
const answer = await response.json();
if (!response.ok) throw new Error(answer.error.message);

for (const { keyphrases, scores } of answer.results) {
  const shown = keyphrases.map((p, i) => `${p} (${scores[i].toFixed(2)})`);
  console.log(shown.join(", "));
}
