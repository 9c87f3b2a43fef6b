"""A path -> rows with line numbers, and rows -> a file that is never half-written.

One reader and one writer for every file the project touches: JSONL, CSV, TSV and Parquet, plain or
gzipped, local or behind a URL. Modules, from the bottom up: `storage` (paths, URLs, folders), `temporaries`
(hidden names and locks), `atomic` (write beside, then rename), `digests`, `lines` (unpacking, encoding, the line
limit), one codec per kind (`jsonl`, `tables`, `parquet`), `rows`, which picks the codec, and `together` (several
outputs of one command).
"""

from pusl_eval.errors import InputError
from pusl_eval.files.atomic import (
    even_permissions,
    folder_atomic,
    open_atomic,
    staging_folder,
    to_json,
    write_bytes,
    write_json,
)
from pusl_eval.files.digests import file_digest, hash_rank, sample_by_hash
from pusl_eval.files.jsonl import read_json
from pusl_eval.files.lines import MAX_LINE, Dialect, is_encodable, read_lines
from pusl_eval.files.reader import Batch, Reader, Record, Row, type_name
from pusl_eval.files.rows import PREDICTION_FIELDS, open_reader, read_rows, write_rows, write_stream
from pusl_eval.files.storage import (
    check_apart,
    check_folder,
    check_input,
    check_output,
    check_outside,
    is_url,
    kind_of,
    make_folder,
    same_path,
)
from pusl_eval.files.tables import split_list
from pusl_eval.files.temporaries import claimed, locked_folder
from pusl_eval.files.together import Journal, check_outputs, put_together, written_together

__all__ = [
    "MAX_LINE",
    "PREDICTION_FIELDS",
    "Batch",
    "Dialect",
    "InputError",
    "Journal",
    "Reader",
    "Record",
    "Row",
    "check_apart",
    "check_folder",
    "check_input",
    "check_output",
    "check_outputs",
    "check_outside",
    "claimed",
    "even_permissions",
    "file_digest",
    "folder_atomic",
    "hash_rank",
    "is_encodable",
    "is_url",
    "kind_of",
    "locked_folder",
    "make_folder",
    "open_atomic",
    "open_reader",
    "put_together",
    "read_json",
    "read_lines",
    "read_rows",
    "same_path",
    "sample_by_hash",
    "split_list",
    "staging_folder",
    "to_json",
    "type_name",
    "write_bytes",
    "write_json",
    "write_rows",
    "write_stream",
    "written_together",
]
