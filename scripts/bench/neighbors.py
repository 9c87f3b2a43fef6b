"""python scripts/bench/neighbors.py --items 1000000 [--brute 20] [--bm25s]

The neighbor index of a fused model at catalog scale: texts of 12 words drawn as in English are indexed and asked for
the 30 nearest. Reports processor seconds, peak memory and queries a second; --brute compares some queries with the
product of all rows, --bm25s measures that library (if it is installed) on the same texts.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any

import numpy as np

from pusl.baselines.tfidf import Tfidf
from pusl.fusion.neighbors import NeighborIndex

VOCABULARY = 200_000
NEIGHBORS = 30


def texts(count: int, seed: int) -> list[str]:
    """Texts of 12 words by Mandelbrot's law: one word is in a third of all texts, most are in a handful."""
    chance = np.random.default_rng(seed)
    share = 1 / (np.arange(VOCABULARY) + 2.7) ** 1.07
    drawn = np.searchsorted(np.cumsum(share / share.sum()), chance.random((count, 12))).clip(max=VOCABULARY - 1)
    return [" ".join(f"w{word}" for word in row) for row in drawn.tolist()]


def peak() -> float:
    """Largest memory of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    """Prints one line per step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--brute", type=int, default=20, help="queries compared with the brute force (default: 20)")
    parser.add_argument("--bm25s", action="store_true")
    args = parser.parse_args()
    stored, asked = texts(args.items, 0), texts(args.queries, 1)
    print(f"{args.items:,} texts; {peak():.1f} GiB before the index")
    if args.bm25s:
        measure_bm25s(stored, asked)
        return
    tfidf = Tfidf(1)
    began = time.process_time()
    features = tfidf.fit(stored)
    counted = time.process_time()
    index = NeighborIndex(features)
    print(f"TF-IDF {counted - began:.0f} s, index {time.process_time() - counted:.1f} s, peak {peak():.1f} GiB")
    queries = tfidf.transform(asked)
    index.nearest(queries[:1], NEIGHBORS)
    began = time.process_time()
    _, similar = index.nearest(queries, NEIGHBORS)
    print(f"{args.queries / (time.process_time() - began):,.0f} queries a second")
    if args.brute:
        transposed = features.T.tocsr()
        began = time.process_time()
        product: Any = (queries[: args.brute] @ transposed).tocsr()
        seconds = time.process_time() - began
        for row in range(args.brute):
            own = np.sort(product.data[product.indptr[row] : product.indptr[row + 1]])[::-1][:NEIGHBORS]
            assert np.allclose(own, similar[row, : len(own)], atol=1e-5), row
        print(f"brute force: the same similarities, {args.brute / seconds:,.1f} queries a second")


def measure_bm25s(stored: list[str], asked: list[str]) -> None:
    """The same with bm25s."""
    import bm25s

    began = time.process_time()
    model = bm25s.BM25()
    model.index(bm25s.tokenize(stored, stopwords=None, show_progress=False), show_progress=False)
    print(f"bm25s: tokenized and indexed in {time.process_time() - began:.0f} s, peak {peak():.1f} GiB")
    words = bm25s.tokenize(asked, stopwords=None, show_progress=False)
    began = time.process_time()
    model.retrieve(words, k=NEIGHBORS, show_progress=False)
    print(f"bm25s: {len(asked) / (time.process_time() - began):,.0f} queries a second")


if __name__ == "__main__":
    main()
