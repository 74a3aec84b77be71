# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a reader sees while a file is written, and what stays after an exception."""

import errno
import json
import os
from contextlib import nullcontext, suppress

import pytest
import torch
from safetensors.torch import load_file, save_file

from grounded_attention.training.loop.checkpoint import is_complete, seal
from grounded_attention.utils import whole_files
from grounded_attention.utils.whole_files import (
    DRAFT,
    delete_folder,
    make_folder,
    whole_file,
    write_bytes,
    write_json,
    write_text,
)


class Stop(BaseException):
    """No Exception: as a key pressed or a process told to end."""


@pytest.fixture
def old(tmp_path):
    """A file that is to be replaced."""
    path = tmp_path / "file"
    path.write_text("old")
    return path


@pytest.mark.parametrize("durable", [False, True])
def test_a_reader_finds_the_old_file_until_the_new_one_is_whole(old, durable):
    with whole_file(old, durable=durable) as draft:
        assert old.read_text() == "old"
        with open(draft, "w") as file:
            file.write("ne")
            file.flush()
            assert old.read_text() == "old"
            file.write("w")
        assert old.read_text() == "old"
    assert old.read_text() == "new"
    assert os.listdir(old.parent) == ["file"]


def test_a_new_file_is_not_there_until_it_is_whole(tmp_path):
    path = tmp_path / "file"
    with whole_file(path) as draft:
        draft.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Stop()])
@pytest.mark.parametrize("begun", [False, True])
def test_after_an_exception_only_the_old_file_exists(old, error, begun):
    with pytest.raises(type(error)), whole_file(old) as draft:
        if begun:
            draft.write_text("ne")
        raise error
    assert old.read_text() == "old"
    assert os.listdir(old.parent) == ["file"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_step_that_fails_leaves_the_old_file_alone(old, monkeypatch, step):
    def fail(*arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="Input/output error"):
        write_text(old, "new", durable=True)
    assert old.read_text() == "old"
    assert os.listdir(old.parent) == ["file"]


def test_content_that_is_no_json_leaves_the_old_file_alone(old):
    with pytest.raises(TypeError):
        write_json(old, {"a": object()})
    assert old.read_text() == "old"


def test_a_place_where_nothing_can_be_written_is_named(old):
    with pytest.raises(NotADirectoryError) as error:
        write_text(old / "below", "new")
    assert str(error.value.filename).startswith(str(old / "below"))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("write", [make_folder, lambda folder: write_text(folder / "file", "new")])
def test_an_error_in_making_a_folder_is_raised(old, monkeypatch, number, write):
    def refuse(path, *_):
        raise OSError(number, os.strerror(number), os.fspath(path))

    monkeypatch.setattr(os, "mkdir", refuse)
    write(old.parent)  # it is there, so nothing is made
    with pytest.raises(OSError) as error:
        write(old.parent / "new" / "folder")
    assert error.value.errno == number
    assert str(old.parent / "new") in str(error.value.filename)


@pytest.mark.parametrize("later", [True, False])
def test_a_folder_that_another_process_makes_first_is_taken(old, monkeypatch, later):
    answers = iter([False, later])
    monkeypatch.setattr(os.path, "isdir", lambda _: next(answers))
    with nullcontext() if later else pytest.raises(FileExistsError):
        make_folder(old.parent)


def test_durable_content_is_on_the_disk_before_it_takes_its_place_and_the_folder_after(old, monkeypatch):
    steps = []
    fsync = os.fsync
    replace = os.replace

    def recorded_fsync(descriptor):
        steps.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def recorded_replace(source, target):
        steps.append((source.read_text(), target))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    write_text(old, "new", durable=True)
    file, moved, folder = steps
    assert os.path.dirname(file) == str(old.parent)
    assert file.endswith(DRAFT)
    assert moved == ("new", old)
    assert folder == str(old.parent)


def test_two_processes_that_write_one_file_do_not_mix(old, monkeypatch):
    with whole_file(old) as first:
        first.write_text("first")
        monkeypatch.setattr(whole_files.os, "getpid", lambda: -1)
        with whole_file(old) as second:
            second.write_text("second")
        assert old.read_text() == "second"
    assert old.read_text() == "first"


def test_every_kind_of_content(tmp_path):
    write_text(tmp_path / "text", "é\n")
    assert (tmp_path / "text").read_bytes() == b"\xc3\xa9\n"
    write_bytes(tmp_path / "bytes", b"\0\xff")
    assert (tmp_path / "bytes").read_bytes() == b"\0\xff"
    write_json(tmp_path / "json", {"a": [1, None]})
    assert json.loads((tmp_path / "json").read_text()) == {"a": [1, None]}
    with whole_file(tmp_path / "weights.safetensors") as draft:
        save_file({"a": torch.arange(3)}, draft)
    assert load_file(tmp_path / "weights.safetensors")["a"].tolist() == [0, 1, 2]


def test_the_draft_of_a_killed_process_belongs_to_no_checkpoint(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    left = tmp_path / f"model.safetensors.1{DRAFT}"
    left.write_text("half")
    seal(tmp_path)
    left.unlink()
    assert is_complete(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_only_files_are_replaced(tmp_path, kind):
    """A rename over /dev/null would break every program of the machine."""
    path = tmp_path / "null"
    if kind == "device":
        with suppress(PermissionError):  # only root makes devices
            os.mknod(path, 0o20666, os.makedev(1, 3))
    if not path.exists():
        path.mkdir() if kind == "folder" else os.mkfifo(path)
    before = path.lstat().st_mode
    with pytest.raises(FileExistsError, match="not replaced by a file"):
        write_text(path, "new")
    assert path.lstat().st_mode == before
    assert os.listdir(tmp_path) == ["null"]


def test_a_folder_that_cannot_be_deleted_is_an_error(tmp_path, monkeypatch):
    folder = tmp_path / "parts"
    delete_folder(folder)  # there is none
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "part").touch()

    def refuse(*arguments, **options):
        raise OSError(errno.EIO, "Input/output error", "part")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output error"):
        patch.setattr(os, "unlink", refuse)
        delete_folder(folder)
    delete_folder(folder)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "pipe", "read-only file"])
def test_what_lies_in_the_place_of_a_draft_is_not_written_through(old, tmp_path_factory, kind):
    """Its name can be foretold, and a killed process of the same number leaves such a file."""
    other = tmp_path_factory.mktemp("other") / "thesis.tex"
    other.write_text("years of work")
    draft = old.with_name(f"file.{os.getpid()}{DRAFT}")
    make = {"link": draft.symlink_to, "hard link": draft.hardlink_to}
    if kind == "dangling link":
        draft.symlink_to(other.with_name("none"))
    elif kind == "pipe":
        os.mkfifo(draft)
    elif kind == "read-only file":
        draft.touch(mode=0o400)
    else:
        make[kind](other)
    write_text(old, "new")
    assert old.read_text() == "new"
    assert not old.is_symlink()
    assert os.listdir(old.parent) == ["file"]
    assert other.read_text() == "years of work"
    assert os.listdir(other.parent) == ["thesis.tex"]


def test_a_link_that_comes_back_in_the_place_of_a_draft_is_an_error(old, tmp_path_factory, monkeypatch):
    other = tmp_path_factory.mktemp("other") / "thesis.tex"
    other.write_text("years of work")
    monkeypatch.setattr(
        type(old), "unlink", lambda self, missing_ok=False: os.path.lexists(self) or self.symlink_to(other)
    )
    with pytest.raises(FileExistsError):
        write_text(old, "new")
    assert old.read_text() == "old"
    assert other.read_text() == "years of work"
