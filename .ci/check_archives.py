"""python .ci/check_archives.py TREE DIST

Source tree + built archives -> an error if an archive lacks a file. Wheels hold every module and every data file of the
packages, the licence and the marker for typed packages; the source archive holds every file of the tree.
"""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path


def files_of(archive: Path) -> set[str]:
    """Names of the files in a wheel or, without the first folder, in a source archive."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            return {name for name in opened.namelist() if not name.endswith("/")}
    with tarfile.open(archive) as opened:
        return {member.name.split("/", 1)[1] for member in opened if member.isfile()}


def package_files(folder: Path) -> set[str]:
    """What a wheel has to hold of a package: everything that Python did not put there itself."""
    return {
        path.relative_to(folder.parent).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def main(tree: Path, dist: Path) -> None:
    """Compares each archive in `dist` with the tree that it was built from."""
    made = {"build", "dist", "__pycache__"}
    sources = {
        path.relative_to(tree).as_posix()
        for path in tree.rglob("*")
        if path.is_file() and not any(part in made or part.endswith(".egg-info") for part in path.parts)
    }
    metrics, system = package_files(tree / "eval" / "pusl_eval"), package_files(tree / "pusl")
    expected = {
        "pusl-*.tar.gz": sources,
        "pusl_eval-*.tar.gz": {*metrics, "pyproject.toml", "README.md", "LICENSE"},
        "pusl-*.whl": {*metrics, *system},
        "pusl_eval-*.whl": metrics,
    }
    configs = {path.relative_to(tree).as_posix() for path in (tree / "configs").rglob("*.yaml")}
    versions = set()
    for pattern, names in expected.items():
        (archive,) = dist.glob(pattern)
        found = files_of(archive)
        versions.add(archive.name.split("-")[1].removesuffix(".tar.gz"))
        if missing := sorted(names - found):
            sys.exit(f"{archive.name} lacks {', '.join(missing)}")
        if pattern == "pusl-*.whl" and (
            lost := sorted(configs - {name.partition("/share/pusl/")[2] for name in found})
        ):
            sys.exit(f"{archive.name} lacks {', '.join(lost)}")
        if not any(name.endswith("LICENSE") for name in found):
            sys.exit(f"{archive.name} lacks its license")
        if archive.suffix == ".whl" and not all(f"{package.split('/')[0]}/py.typed" in found for package in names):
            sys.exit(f"{archive.name} lacks py.typed")
        print(f"{archive.name}: {len(found)} files")
    if len(versions) != 1:
        sys.exit(f"one version for all archives, found {', '.join(sorted(versions))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
