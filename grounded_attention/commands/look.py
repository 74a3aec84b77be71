# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Asks a vision-language model about images, and shows where it looked for every word.

The model answers on its own attention back end. What each part of the image adds to the words of question and answer,
or their attention, is read beside the output, without attention maps, so that it takes little more time than the
answer. The page --output shows the map of each word, to click through; a name that ends in .png or .json gives a
picture or the numbers.

Heads of attention are those of heads.json beside the model (`grounded-attention heads` makes it), or else chosen for
this question without labels (Localization Heads). --form relative divides by the attention of a neutral question,
sinks removes image tokens that nearly every word attends to. --again crops the image where the model looked and asks
once more.

examples:
  grounded-attention look dog.jpg "What does the dog hold?" --model Qwen/Qwen2.5-VL-3B-Instruct --dtype bfloat16

  # the difference of two pictures; one head; a given answer instead of a generated one
  grounded-attention look before.png after.png "What changed?" --model runs/my_vlm --heads 14-3 --answer "a red ball"

  # what made it say "red", rather than "blue"
  grounded-attention look dog.jpg "Which colour?" --model runs/my_vlm --form contribution --against red=blue

  # a video: a file, or a folder with its frames
  grounded-attention look clip.mp4 "When does the ball fall?" --model Qwen/Qwen2.5-VL-3B-Instruct

  # rows of a data set, on one page
  grounded-attention look --data lmms-lab/RefCOCO --split val --max-rows 4 --model Qwen/Qwen2.5-VL-3B-Instruct

  # answers that a server generated: a table of words; in two processes
  torchrun --nproc_per_node 2 -m grounded_attention look --data questions.jsonl --answers answers.jsonl \\
      --model Qwen/Qwen2.5-VL-3B-Instruct --dtype bfloat16 --output lens.parquet

  # boxes of the words of the answer, as predictions of Label Studio
  grounded-attention look dog.jpg "What is it?" --model runs/my_vlm --export label-studio --output tasks.json

  # whether maps are to be believed: what they rank first is covered, or shown alone
  grounded-attention look --data rows.jsonl --model runs/my_vlm --faithful plain sinks relative --cover blur

  # another model beside it on the same page
  grounded-attention look dog.jpg "What does the dog hold?" --model runs/my_vlm --beside runs/other_vlm
"""

from typing import Annotated, Any

from grounded_attention.lens import COVERS, EXPORTS, INSTRUCTION, ROWS, check_suffix
from grounded_attention.utils.named_types import Fields

from .command_line import Positive, Program, Result, explain_error
from .models import ModelOptions, read_heads
from .rows_options import RowSource

SHOWN = 8  # heads
PAGE = "lens.html"


def look(
    images_and_question: list[str] = [],  # noqa: B006
    *,
    source: RowSource,
    model: str,
    beside: str | None = None,
    loading: ModelOptions,
    answer: str | None = None,
    heads: str = "auto",
    form: str | None = None,
    rows: Annotated[str, ROWS] | None = None,
    against: str | None = None,
    again: bool = False,
    output: str = PAGE,
    answers: str | None = None,
    answer_ids: str | None = None,
    batch_size: Positive | None = None,
    export: Annotated[str, EXPORTS] | None = None,
    faithful: tuple[str, ...] | None = None,
    cover: Annotated[str, COVERS] = COVERS[0],
) -> Result | None:
    """Asks each model about each input.

    Args:
        images_and_question (IMAGE ... QUESTION): files of images, videos, folders of frames, then the words of the
            user; with --data words alone (default: the text of each row)
        model (NAME_OR_DIR): a vision-language model with its processor
        beside (NAME_OR_DIR): a second model on the same page
        answer (TEXT): read this answer instead of generating one
        heads (WHICH): auto, all, a layer, 14-3,20-0 or heads.json
        form (FORM): of plain, relative, sinks, rollout, with commas; or contribution, two-hop, tam (default:
            contribution; of named --heads and of --answers plain)
        rows: of a word its own tokens, or what produced them (default: own; of contribution and two-hop before)
        against (WORD=OTHER): what speaks for a word rather than another one, with --form contribution
        again: crop the first image, or a frame of the video, where the model looked, and ask once more
        output (FILE): page, picture or numbers; of --answers a table, a name that ends in .parquet; of --faithful a
            folder
        answers (FILE): given answers of all rows of --data: output of the OpenAI Batch API or vLLM, or the name
            of a column; messages: their last turns
        answer_ids (COLUMN): column of --data with the ids of --answers (default: the one that has all)
        batch_size (N): rows of --answers that are read in one pass (default: 8)
        export: write the boxes of the answers' words for a tool of labelling, to an --output that ends in .json
        faithful (FORM): measure on rows with boxes whether maps of these forms are to be believed
        cover: of --faithful: what takes the place of image tokens
    """
    if faithful is not None:
        unread: Fields = {"answer": answer, "beside": beside, "against": against, "again": again, "answers": answers}
        unread |= {"export": export, "form": form, "answer-ids": answer_ids, "batch-size": batch_size}
        others = ", ".join(f"--{name}" for name, value in unread.items() if value)
        if others:
            raise ValueError(f"--faithful measures its own forms on given texts: remove {others}")
        if source.data is None:
            raise ValueError("--faithful measures maps of words with boxes: give rows with --data")
        from grounded_attention.lens.faithfulness import measure_words

        question = " ".join(images_and_question) or INSTRUCTION
        how: Fields = {"heads": read_heads(heads), "forms": faithful, "token_rows": rows, "cover": cover}
        network, processor = loading.load(model)
        curves = measure_words(network, processor, source.open(), instruction=question, **how)
        return curves.to_dict(), curves.save("runs/faithful" if output == PAGE else output)
    if answers is not None:
        if answer is not None or beside is not None or again or export:
            given = "--answer, --beside, --again and --export"
            raise ValueError(f"--answers gives all answers of one model: remove {given}")
        from .look_answers import AnswerOptions, look_at_answers

        options = AnswerOptions(answers, answer_ids, batch_size, heads, form or "plain", rows)
        return look_at_answers(images_and_question, source, model, loading, options, output)
    for name, value in (("answer-ids", answer_ids), ("batch-size", batch_size)):
        if value is not None:
            raise ValueError(f"--{name} is for --answers")
    check_suffix(output)
    if export is not None and (beside is not None or not output.endswith(".json")):
        raise ValueError(f"--export {export}: give --output a name that ends in .json, and one model without --beside")
    inputs = _read_inputs(images_and_question, source)
    models = [model] if beside is None else [model, beside]
    if len(inputs) * len(models) > 1 and export is None and not output.endswith(".html"):
        raise ValueError(f"--output {output}: two models or rows need a page, a name that ends in .html")
    asked: Fields = {
        "answer": answer,
        "form": form,
        "rows": rows,
        "against": _read_against(against),
        "again": again,
    }
    from grounded_attention.lens.export import Exported, export_lens
    from grounded_attention.lens.look import look as look_at
    from grounded_attention.lens.page import lens_page
    from grounded_attention.utils.whole_files import write_text

    looks = []
    for name in models:
        loaded = loading.load(name)
        looks.append([look_at(*loaded, *each, heads=read_heads(heads), **asked) for _, *each in inputs])
    titles = []
    lenses = []
    for place, (title, *_) in enumerate(inputs):
        for name, of_model in zip(models, looks, strict=True):
            titles.append(": ".join(filter(None, (title, name if beside else ""))))
            lenses.append(of_model[place])
    if export is not None:
        named = zip(lenses, _image_names(images_and_question, source), strict=True)
        write_text(output, export_lens([Exported(*pair) for pair in named], export))
    elif len(lenses) == 1:
        lenses[0].save(output)
    else:
        write_text(output, lens_page(lenses, titles))
    lines = []
    for title, lens in zip(titles, lenses, strict=True):
        lines += _lines(title, lens)
    lines.append(f"open {output}" if export is None else f"written to {output}, for {export}")
    numbers = [lens.to_dict() for lens in lenses]
    return numbers if len(numbers) > 1 else numbers[0], "\n".join(lines)


def _read_against(text: str | None) -> dict[str, str] | None:
    if text is None:
        return None
    word, _, other = text.partition("=")
    if not word or not other:
        raise ValueError(f"--against {text}: expected WORD=OTHER, such as red=blue")
    return {word: other}


def _read_inputs(words: list[str], source: RowSource) -> list[tuple[str, list[Any], str]]:
    """Name, pictures and question of each row, or of the command line, where the name is empty."""
    from grounded_attention.processing.phrase import row_texts
    from grounded_attention.processing.videos import is_video_file, open_video
    from grounded_attention.utils.open_images import open_image

    if source.data is None:
        source.refuse_without_data()
        if len(words) < 2:
            raise ValueError("give images and a question, or --data")
        if not words[-1].strip():
            raise ValueError("the question is empty: give the words of the user in quotation marks, after the images")
        pictures = []
        for each in words[:-1]:
            pictures.append(open_video(each) if is_video_file(each) else open_image(each, each))
        return [("", pictures, words[-1])]
    from grounded_attention.dataset_scripts.builders.llava_instruct import IMAGE_MARK

    if len(words) > 1:
        raise ValueError(f"{words[0]}: the images are those of --data; give a question alone, or none")
    inputs = []
    for number, row in enumerate(source.pictured()):
        if words:
            question = words[0]
        else:
            question = row_texts(row)[0].replace(IMAGE_MARK, "").strip()
        inputs.append((f"row {number}, {question}", row.get("images") or [row["image"]], question))
    return inputs


def _image_names(words: list[str], source: RowSource) -> list[list[str]]:
    """Of each input the names of its pictures: paths, or for pictures inside of rows the row's id."""
    if source.data is None:
        return [words[:-1]]
    names = []
    for row in source.pictured(decode=False):
        pictures = row.get("images") or [row["image"]]
        names.append([each if isinstance(each, str) else str(row["image_id"]) for each in pictures])
    return names


def _lines(title: str, lens: Any) -> list[str]:
    """What is printed of an answer."""
    answer = lens.answer if lens.answer.strip() else "(no words)"
    lines = [f"{title}: {answer}" if title else answer]
    if lens.second is not None:
        lines.append(f"asked again with the crop {lens.crop} of {lens.names[lens.crop_image]}: {lens.second.answer}")
    shown = ", ".join(f"{layer}-{head}" for layer, head in lens.heads[:SHOWN])
    more = ""
    if len(lens.heads) > SHOWN:
        more = f" … ({len(lens.heads)})"
    return [*lines, f"heads: {shown + more or 'all'} ({lens.heads_from})"]


main = Program("look", look, explain_error)
