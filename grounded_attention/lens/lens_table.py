# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The table of where a model looked for each word of many rows, made by any number of processes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tqdm import tqdm

from grounded_attention.dataset_scripts.files.errors import refuse_if
from grounded_attention.dataset_scripts.files.jobs import Job
from grounded_attention.dataset_scripts.files.manifests import join_parts, make_parts
from grounded_attention.dataset_scripts.regions.extraction_run import join_processes
from grounded_attention.supervision.supervise import model_device
from grounded_attention.utils.named_types import Fields, Row
from grounded_attention.utils.processes import folder_lock
from grounded_attention.utils.whole_files import delete_folder, make_folder

from .answered import Looked, ManyLooks, ask_row
from .answers import IDS, GivenAnswer

PART = 128  # rows that one process reads before it writes them
PARTS = ".parts"
GIVEN = "given answer"  # a column that no user has
SUFFIX = ".parquet"
_SIDES = ("x1", "y1", "x2", "y2", "x", "y")
_TYPES = {
    **{"row": pa.int64(), "id": pa.string(), "image": pa.int32(), "word": pa.string()},
    **dict.fromkeys(("start", "end", "text"), pa.int32()),
    "answer": pa.bool_(),
    **dict.fromkeys(("share", *_SIDES), pa.float32()),
    **{"heads": pa.string(), "other_answer": pa.bool_()},
}
SCHEMA = pa.schema(_TYPES)


class ReadAnswers(Job):
    """Reads where a model looks for each word of prompts and given answers: the job of [`look_table`], for any engine.

    In: rows as for [`look_many`]; those with None in the column of answers are left out. Out: the rows of
    [`look_table`], one for each word; `row` is that of the row, if it has such a column.

    Args:
        load (`Callable[[], ManyLooks]`): makes, in a process, the model with its heads.
        answers (`str`, *optional*): the column of the answers; by default the last turn of the assistant.
        ids (`Sequence[str]`, *optional*): columns, of which the first that a row has is its id.
    """

    schema = SCHEMA

    def __init__(self, load: Callable[[], ManyLooks], answers: str | None = None, ids: Sequence[str] = IDS) -> None:
        super().__init__(load)
        self.answers = answers
        self.ids = ids

    def work(self, rows: Sequence[Row]) -> Iterator[Iterable[Row]]:
        asked = []
        for place, row in enumerate(rows):
            answer = None
            if self.answers is not None:
                if self.answers not in row:
                    raise ValueError(f"no column {self.answers!r} of answers; the columns are {', '.join(row)}")
                answer = row[self.answers]
            if answer is not None or self.answers is None:
                asked.append(ask_row(row, answer, row.get("row", place), self.ids))
        is_numbered = bool(rows) and "row" in rows[0]
        for words in self.made.look(asked, table_rows):
            yield words if is_numbered else [{**word, "row": None} for word in words]


def look_table(
    looks: ManyLooks,
    rows: Iterable[Row],
    answers: Sequence[GivenAnswer | None],
    output: str | Path,
    *,
    ids: Sequence[str] = IDS,
    part_size: int = PART,
    progress: bool = True,
) -> Fields | None:
    """Writes where a model looks for each word of prompts and given answers.

    The rows are shared by the processes of a launch (accelerate, torchrun). The bytes of the table do not depend on
    their number. A stopped run leaves no table, and the next one begins anew.

    Args:
        looks (`ManyLooks`): the model, its heads, and how many rows are read in one pass.
        rows (iterable of rows): as for [`look_many`]; they are iterated once in each process.
        answers (`Sequence[GivenAnswer | None]`): the answer of each row; rows with `None` are left out.
        output (`str` or `Path`): the table, a name that ends in `.parquet`: a row for each word, with `row` (number)
            and `id` of its row, `image` (from 0, that with most of its attention), `word`, its characters `start` and
            `end` of the text number `text`, `answer` (whether it is one of the answer), `share` of its attention that
            goes to the image, box `x1` to `y2` and point `x`, `y` in [0, 1], `heads` such as "14-3,20-0", and
            `other_answer`, whether the answer that was given is not the text of its tokens.
        ids (`Sequence[str]`, *optional*): columns, of which the first that a row has is its id.
        part_size (`int`, *optional*, defaults to 128): rows that one process reads at a time.
        progress (`bool`, *optional*, defaults to `True`): whether the first process shows a bar.

    Returns:
        `dict`, *optional*: in the first process, numbers of `rows`, `words` and `answer_words`, and `other_answers`,
            the numbers of their rows.

    Raises:
        DataError: if the file is there already.
        ValueError: as of [`look_many`].
    """
    output = check_table_name(output)
    state = join_processes(cpu=model_device(looks.model).type == "cpu")
    numbers = [number for number, answer in enumerate(answers) if answer is not None]
    folder = output.with_name(f".{output.name}{PARTS}")
    first = state.process_index == 0
    hint = "choose another name, or remove it"
    refuse_if(output.exists(), "the file is there already", file=output, hint=hint)
    make_folder(folder)
    with folder_lock(folder, doing="writes this table", hint="wait for it") if first else nullcontext():
        for part in folder.glob(f"*{SUFFIX}") if first else ():  # of a stopped run
            part.unlink()
        state.wait_for_everyone()
        job = ReadAnswers(lambda: looks, GIVEN, ids)
        numbered = enumerate(rows)
        done = 0  # rows that were passed

        def make(units: range, bar: tqdm) -> pa.Table:
            nonlocal done
            wanted = numbers[units.start : units.stop]
            answered = []
            for number, row in islice(numbered, wanted[-1] + 1 - done):
                if number >= wanted[0]:
                    answered.append({**row, "row": number, GIVEN: answers[number]})
            done = wanted[-1] + 1
            return job.table(answered, bar.update)

        named = {"title": "looks", "unit": "row"}
        parts = make_parts(folder, len(numbers), part_size, make, state, **named, progress=progress)
        if first:
            join_parts(output, parts, SCHEMA, row_each=False)
            delete_folder(folder)
    return _summary(output, len(numbers)) if first else None


def table_rows(looked: Looked) -> list[Fields]:
    """The rows of the table for one look."""
    lens = looked.lens
    heads = ",".join(f"{layer}-{head}" for layer, head in lens.heads)
    about: Fields = {
        "row": looked.asked.number,
        "id": looked.asked.id,
        "heads": heads,
        "other_answer": looked.is_other,
    }
    rows = []
    for word, one in zip(lens.words, lens, strict=True):
        place: Fields = {"word": word.text, "start": word.start, "end": word.end, "text": word.sentence}
        sides = dict(zip(_SIDES, (*one.box, *one.point), strict=True))
        rows.append({**about, **place, **sides, "answer": word.answer, "image": one.image, "share": one.share})
    return rows


def check_table_name(output: str | Path) -> Path:
    """The path of a table; a ValueError if its name ends otherwise."""
    if Path(output).suffix != SUFFIX:
        raise ValueError(f"{output}: expected a name that ends in {SUFFIX}")
    return Path(output)


def _summary(output: Path, count: int) -> Fields:
    table = pq.read_table(output, columns=["row", "answer", "other_answer"])
    others = pc.unique(table.filter(table["other_answer"])["row"]).to_pylist()
    answers = pc.sum(table["answer"]).as_py() or 0
    return {"rows": count, "words": len(table), "answer_words": answers, "other_answers": others}
