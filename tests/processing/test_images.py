# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import ast
import contextlib
import io
import json
import os
import re
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from PIL import EpsImagePlugin, Image, ImageColor, ImageOps
from transformers import AutoImageProcessor

from grounded_attention.processing import FastRCNNImageProcessor, open_image, open_images
from tests.helpers.tiny_pictures import picture
from tests.helpers.warm_python import ROOT, run_python

MEAN = np.array([102.9801, 115.9465, 122.7717], dtype=np.float32)
RED = (200, 30, 90)
GREY = 120


def exact_size(width, height, short, long):
    """The same rule in exact fractions, side by side instead of sorted."""
    narrow = min(width, height)
    wide = max(width, height)
    scale = Fraction(short, narrow)
    if wide * scale > long:
        scale = Fraction(int(Fraction(long, wide) * narrow), narrow)
    return int(width * scale), int(height * scale)


@pytest.mark.parametrize("short, long", [(600, 1000), (600, 1200), (24, 40)])
def test_sizes_equal_exact_arithmetic(short, long):
    processor = FastRCNNImageProcessor(size={"shortest_edge": short, "longest_edge": long})
    photographs = np.loadtxt(
        io.StringIO("640 480\n480 640\n500 333\n333 500\n1000 600\n1001 600\n7 7\n3000 999\n600 601")
    )
    random_sizes = np.random.default_rng(0).integers(100, 1500, (300, 2))
    for size in np.concatenate([photographs, random_sizes]).astype(int).tolist():
        found = processor.resized(*size)
        assert found == exact_size(*size, short, long), size
        assert max(found) <= long


@pytest.mark.parametrize("size, expected", {(1, 5000): (1, 1000), (5000, 1): (1000, 1), (1, 1): (600, 600)}.items())
def test_a_sliver_keeps_a_pixel(size, expected):
    assert FastRCNNImageProcessor().resized(*size) == expected


def small(**options):
    return FastRCNNImageProcessor(size={"shortest_edge": 24, "longest_edge": 40}, **options)


def test_pixels_are_bgr_minus_mean_and_padded_with_zeros():
    images = [picture(48, 36), picture(20, 50, 1)]
    sizes = [[32, 24], [16, 40]]
    batch = small()(images)
    pixels = batch["pixel_values"]
    assert batch["image_sizes"].tolist() == sizes
    assert batch["image_sizes"].dtype == torch.int64
    assert pixels.shape == (2, 3, 40, 32)
    assert pixels.dtype == torch.float32
    for row, image, size in zip(pixels.numpy(), images, sizes, strict=True):
        resized = np.asarray(image.resize(size, Image.BILINEAR), dtype=np.float32)
        expected = np.zeros((40, 32, 3))
        expected[: size[1], : size[0]] = resized[..., ::-1] - MEAN
        assert_allclose(row.transpose(1, 2, 0), expected, atol=1e-5)


def test_mean_and_spread_can_be_set():
    plain = small(image_mean=[0, 0, 0], image_std=[1, 2, 4])(Image.new("RGB", (24, 24), RED))["pixel_values"]
    assert plain[0, :, 0, 0].tolist() == [90, 15, 50]


def test_all_kinds_of_images_give_the_same_pixels(tmp_path):
    image = picture(30, 24)
    path = save(tmp_path / "a.png", image)
    array = np.asarray(image)
    first = array.transpose(2, 0, 1)
    kinds = [path, str(path), image, array, first, torch.tensor(array), torch.tensor(first), torch.tensor(first) / 255]
    kinds += [array.astype(np.int64), np.asarray(image.convert("RGBA")), Image.open(path)]
    processor = small()
    expected = processor(image)["pixel_values"]
    for kind in kinds:
        assert torch.equal(processor(kind)["pixel_values"], expected), type(kind)
    assert torch.equal(processor(np.stack([first] * 3))["pixel_values"][2:], expected)
    grey = processor(array[..., 0])["pixel_values"]
    assert grey.shape == expected.shape
    assert torch.equal(processor(array[..., :1])["pixel_values"], grey)
    assert isinstance(processor(image, "np")["image_sizes"], np.ndarray)


def save(path, image, **options):
    image.save(path, **options)
    return path


def make_image(mode, colour):
    """A picture of one colour; of palettes, `colour` is transparent or none."""
    image = Image.new(mode, (4, 4), 1 if mode == "P" else colour)
    if mode == "P":
        image.putpalette([1, 2, 3, *RED])
        if colour:
            image.info["transparency"] = 1
    return image


MODES = {
    "1": ("1", 1, "png", "white"),
    "L": ("L", "#787878", "png", "#787878"),
    "LA opaque": ("LA", "#787878ff", "png", "#787878"),
    "LA clear": ("LA", "#78787800", "png", "white"),
    "P": ("P", None, "png", "#c81e5a"),
    "P transparent": ("P", "transparent", "png", "white"),
    "P gif": ("P", None, "gif", "#c81e5a"),
    "RGB": ("RGB", "#c81e5a", "png", "#c81e5a"),
    "RGBA opaque": ("RGBA", "#c81e5a", "png", "#c81e5a"),
    "RGBA half": ("RGBA", "#00000033", "png", "#cccccc"),
    "CMYK": ("CMYK", (0, 255, 255, 0), "tiff", "red"),
    "I;16": ("I;16", GREY * 256 + 7, "png", "#787878"),
    "I;16 tiff": ("I;16", 65535, "tiff", "white"),
    "YCbCr": ("YCbCr", (GREY, 128, 128), "tiff", "#787878"),
}


@pytest.mark.parametrize("mode, colour, ending, expected", MODES.values(), ids=MODES)
def test_modes_become_rgb(mode, colour, ending, expected, tmp_path):
    path = save(tmp_path / f"a.{ending}", make_image(mode, colour))
    opened = open_image(path)
    assert opened.mode == "RGB"
    assert opened.size == (4, 4)
    assert opened.getpixel((1, 2)) == pytest.approx(ImageColor.getrgb(expected), abs=1)
    assert np.array_equal(open_image(Image.open(path)), opened)


@pytest.mark.parametrize("mode", ["F", "I"])
def test_modes_without_a_known_range_are_refused(mode, tmp_path):
    path = save(tmp_path / "a.tiff", Image.new(mode, (4, 4)))
    with pytest.raises(ValueError, match=rf"image 1 \({path}\): .*{mode}.*save it"):
        open_images([Image.new("L", (2, 2)), path])


def in_forms(path):
    """A picture in a file in all forms in which users give it."""
    content = path.read_bytes()
    in_dictionaries = [{"bytes": content, "path": None}, {"bytes": None, "path": str(path)}]
    return [path, str(path), content, *in_dictionaries, Image.open(path)]


@pytest.mark.parametrize("suffix", ["png", "tiff", "webp", "jpg"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_upright_in_every_form(tmp_path, orientation, suffix):
    """A picture stored in one of the eight ways of EXIF is the one that PIL shows."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path / f"a.{suffix}", picture(48, 32), exif=exif)
    expected = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    assert expected.size == ((48, 32) if orientation < 5 else (32, 48))
    for form in in_forms(path):
        opened = open_image(form)
        assert np.array_equal(opened, expected)
        assert np.array_equal(open_image(opened), expected)  # an opened picture is not turned again
    assert small()(path)["image_sizes"].tolist() == small()(expected)["image_sizes"].tolist()


@pytest.mark.parametrize("mode, kind", {"RGB": "jpeg", "L": "png", "RGBA": "png"}.items())
def test_a_large_picture_is_opened_at_a_third(tmp_path, mode, kind):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = save(tmp_path / "a", picture(46, 31).convert(mode), exif=exif, format=kind)
    pixels = 46 * 31
    whole = open_image(path)
    reduced = Image.open(path).convert("RGB").reduce(3).transpose(Image.Transpose.ROTATE_270)
    for form in in_forms(path):
        assert np.array_equal(open_image(form, least=pixels), whole)
        found = open_image(form, least=pixels // 9)
        assert found.size == (11, 16)  # rounded up, so that no pixel is lost
        assert_allclose(np.asarray(found, float), reduced, atol=1)


def test_damaged_metadata_do_not_matter(tmp_path):
    path = save(tmp_path / "a.jpg", picture(6, 4), exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert open_image(path).size == (6, 4)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_drawn_over_white_in_strips(monkeypatch, mode):
    monkeypatch.setattr("grounded_attention.utils.open_images.STRIP", 3)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 5, 4), np.uint8)
    picture = Image.fromarray(pixels)
    if mode == "P":
        picture = picture.convert("RGB").quantize(7)
        picture.info["transparency"] = bytes([0, 90, 255, 30])
    else:
        picture = picture.convert(mode)
    whole = picture.convert("RGBA")
    white = Image.new("RGBA", whole.size, "white")
    assert_array_equal(open_image(picture), Image.alpha_composite(white, whole).convert("RGB"))


DAMAGED = {
    "large.jpg": r"cannot be read .*truncated.*; get it again\.$",  # with no word about its size
    "cut.jpg": "cannot be read .*truncated",
    "text.jpg": "not an image file",
    "empty.png": "not an image file",
    "none.jpg": "no such file",
    ".": "a folder",
}


def test_damaged_and_foreign_files_are_named(tmp_path):
    whole = save(tmp_path / "whole.jpg", picture(64, 64))
    large = save(tmp_path / "phone.jpg", Image.new("L", (5000, 4000))).read_bytes()
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(whole.read_bytes()[:900])
    (tmp_path / "text.jpg").write_text("no picture")
    (tmp_path / "empty.png").touch()
    (tmp_path / "large.jpg").write_bytes(large[:-9000])
    for name, message in DAMAGED.items():
        path = tmp_path / name
        with pytest.raises(ValueError, match=rf"image 1 \({path}\): {message}"):
            small()([whole, path])
    with pytest.raises(ValueError, match=r"image 1 \(.*cut.jpg\): cannot be read"):
        small()([whole, Image.open(cut)])
    with pytest.raises(ValueError, match=r"\(https://example.org/a.jpg\): no such file"):
        small()("https://example.org/a.jpg")


@pytest.mark.parametrize("ending", "eps pcx tga ico icns dds sgi xbm pdf qoi spider".split())
def test_other_formats_are_refused_before_they_are_decoded(tmp_path, monkeypatch, ending):
    """PIL runs Ghostscript for EPS, whatever the file is named."""
    mode = {"xbm": "1", "spider": "F"}.get(ending, "RGB")
    content = io.BytesIO()  # to a file, PIL would write SPIDER by this file's ending from now on
    Image.new(mode, (32, 32)).save(content, ending)
    path = tmp_path / "a.jpg"
    path.write_bytes(content.getvalue())
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *given, **options: pytest.fail("Ghostscript runs"))
    given = [path, content]
    with contextlib.suppress(Image.UnidentifiedImageError):  # PDF
        given.append(Image.open(path))  # not yet decoded
    for image in given:
        with pytest.raises(ValueError, match=r"not an image file.*found .*expected JPEG, .*PNG") as error:
            open_image(image)
        named = ending.upper() in str(error.value)
        assert named or ending in ("pdf", "tga", "spider")  # no mark in their first bytes


@pytest.mark.parametrize("kind", "jpeg mpo png webp gif bmp dib tiff ppm jpeg2000 avif".split())
def test_the_formats_of_photographs_are_opened_whatever_their_name(tmp_path, kind):
    image = Image.linear_gradient("L").convert("RGB")
    path = save(tmp_path / "a.eps", image, format=kind)
    for given in (path, io.BytesIO(path.read_bytes())):
        assert_allclose(np.asarray(open_image(given), float), image, atol=16)


def test_the_first_picture_of_a_process_is_opened(tmp_path):
    """PIL has loaded no format yet."""
    path = save(tmp_path / "a.jpg", picture(6, 4))
    code = "import sys; from grounded_attention.utils.open_images import open_image as o; print(o(sys.argv[1]).size)"
    assert run_python(code, [path], cwd=ROOT, env=os.environ).stdout == "(6, 4)\n"


@pytest.mark.filterwarnings("error")
def test_decompression_bombs_are_refused_by_their_header(tmp_path, monkeypatch):
    path = save(tmp_path / "bomb.png", Image.new("L", (30, 20)))
    for limit in (599, 100):  # PIL itself warns above its limit, and raises above twice that.
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(ValueError, match=rf"bomb.png\): .*more than {limit} pixels"):
            open_images(path)
    for limit in (600, None):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        assert open_image(path).size == (30, 20)


PHOTOGRAPHS = {
    "JPEG": ((16_320, 12_240), {}),  # 200 megapixels
    "TIFF": ((16_320, 12_240), {"compression": "tiff_deflate"}),
    # As large as one of a photograph: its decoder needs 1.7 GB, more than a small file has.
    "WEBP": ((12_000, 9000), {"method": 0, "exif": bytes(2**24)}),
    "AVIF": ((8064, 6048), {"speed": 10}),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", PHOTOGRAPHS)
def test_photographs_of_phones_are_read_and_leave_pils_limit_alone(tmp_path, kind):
    size, options = PHOTOGRAPHS[kind]
    before = Image.MAX_IMAGE_PIXELS
    path = save(tmp_path / "a", Image.new("L", size, 77), format=kind, **options)
    assert open_image(path).size == size
    assert Image.MAX_IMAGE_PIXELS == before


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "CMYK", "I;16"])
def test_a_reduced_picture_is_the_whole_one_reduced(tmp_path, mode):
    source = np.random.default_rng(0)
    bands = Image.new(mode, (1, 1)).getbands()
    pixels = source.integers(0, 256, (401, 517, 2 if mode == "I;16" else len(bands)), np.uint8)
    path = save(tmp_path / "a.tiff", Image.frombytes(mode, (517, 401), pixels.tobytes()))
    whole = open_image(path)
    assert np.array_equal(open_image(path, least=401 * 517 // 9), whole.reduce(3))
    assert np.array_equal(open_image(path, least=2**24), whole)


def repeat_scan(content, times):
    """A progressive JPEG file that changes all of its pixels again and again, by its last scan."""
    start = content.rfind(b"\xff\xc4", 0, content.rfind(b"\xff\xda"))
    return content[:-2] + content[start:-2] * times + content[-2:]


def progressive(path, size):
    return save(path, Image.new("L", size, 90), format="JPEG", progressive=True).read_bytes()


@pytest.mark.parametrize("thread", [False, True])
def test_a_file_of_many_scans_is_refused_in_any_thread(tmp_path, thread):
    """40 times is slow, but allowed."""
    content = progressive(tmp_path / "a.jpg", (2500, 2500))
    with ThreadPoolExecutor() as threads:
        call = (lambda given: threads.submit(open_image, given).result()) if thread else open_image
        assert call(repeat_scan(content, 40)).size == (2500, 2500)
        with pytest.raises(ValueError, match=r"800\d scans of 2500 x 2500"):
            call(repeat_scan(content, 8000))


def tiff_of_shared_parts(path, size, kind, part, content, times):
    """All parts of the picture are the same bytes of the file."""
    content += b"\0" * (len(content) % 2)
    tables_at = 8 + len(content)
    tables = np.array([[8] * times, [len(content)] * times], "<u4").tobytes()
    tags = {256: size[0], 257: size[1], 258: 8, 259: kind, 262: 1, 277: 1, 322: part[0], 323: part[1]}
    entries = b""
    for tag, value in tags.items():
        entries += struct.pack("<HHII", tag, 4, 1, value)
    entries += struct.pack("<HHIIHHII", 324, 4, times, tables_at, 325, 4, times, tables_at + 4 * times)
    directory_at = struct.pack("<I", tables_at + len(tables))
    path.write_bytes(b"II*\0" + directory_at + content + tables + struct.pack("<H", 10) + entries + bytes(4))
    return path


def test_a_tiff_file_whose_parts_take_far_more_than_its_picture_is_refused(tmp_path):
    part = (16_320, 6000)
    content = repeat_scan(progressive(tmp_path / "a.jpg", part), 80)
    scans = tiff_of_shared_parts(tmp_path / "scans.tif", (16_320, 12_000), 7, part, content, 2)
    with pytest.raises(ValueError, match=r"17\d scans of 16320 x 12000 in 2 parts"):
        open_image(scans)
    content = zlib.compress(bytes(960_000))
    narrow = tiff_of_shared_parts(tmp_path / "b.tif", (2, 319_968), 8, (30_000, 32), content, 9999)
    with pytest.raises(ValueError, match="0 scans of 2 x 319968 in 9999 parts of 960000 pixels"):
        open_image(narrow)
    content = zlib.compress(bytes([GREY]) * 1024)
    allowed = tiff_of_shared_parts(tmp_path / "c.tif", (40, 64), 8, (32, 32), content, 4)
    assert np.array_equal(open_image(allowed), Image.new("RGB", (40, 64), "#787878"))


def test_the_error_names_how_to_allow_more(tmp_path, monkeypatch):
    path = save(tmp_path / "large.png", Image.new("1", (20_000, 10_001)))
    with pytest.raises(ValueError, match="20000 x 10001 are more than 200000000 pixels") as error:
        open_image(path)
    name, value = re.search(r"(\w+)=(\d+) before the command", str(error.value)).groups()
    monkeypatch.setenv(name, value)
    assert open_image(path).size == (20_000, 10_001)
    monkeypatch.setenv(name, "300")
    with pytest.raises(ValueError, match="more than 300 pixels"):
        open_image(save(tmp_path / "small.png", Image.new("L", (30, 20))))
    for wrong in ("many", "0", "-5", "1e9"):
        monkeypatch.setenv(name, wrong)
        with pytest.raises(ValueError, match=rf"^{name}={wrong}: expected"):
            open_image(path)


WRONG_VALUES = {
    256: "from 256 to 256, expected integers 0 to 255",
    -1: "from -1 to -1",
    1.5: r"from 1.5 to 1.5, expected integers 0 to 255 or floats in \[0, 1\]",
    np.nan: "from nan to nan",
    False: "an array of bool",
    "a": "an array of <U1",
}


@pytest.mark.parametrize("value, message", WRONG_VALUES.items())
def test_other_values_than_those_of_pixels_are_refused(value, message):
    with pytest.raises(ValueError, match=message):
        small()(np.full((4, 5), value))


@pytest.mark.parametrize(
    "image, message",
    [
        (np.zeros((5, 5, 2), np.uint8), r"shape \(5, 5, 2\), expected \(H, W\)"),
        (np.zeros((0, 5)), r"shape \(0, 5\)"),
        ([], "the batch is empty"),
        (7, "7 is not an image"),
        ([7], "image 0: int is not an image"),
        ([[7]], "image 0: list is not an image"),
        (Image.new("RGB", (0, 4)), "0 x 4 pixels"),
    ],
)
def test_other_objects_than_images_are_refused(image, message):
    with pytest.raises(ValueError, match=message):
        small()(image)


WRONG_SETTINGS = {
    '{"size": {"shortest_edge": 9}}': "expected {'shortest_edge': pixels, 'longest_edge': pixels}",
    '{"size": {"shortest_edge": 9, "longest_edge": 8}}': "0 < shortest_edge <= longest_edge",
    '{"image_mean": [1, 2]}': r"image_mean=\[1, 2\], expected three numbers",
    '{"image_std": [1, 0, 1]}': "0 is not allowed",
}


@pytest.mark.parametrize("settings, message", WRONG_SETTINGS.items())
def test_senseless_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        FastRCNNImageProcessor(**json.loads(settings))


def test_unknown_argument_is_refused():
    with pytest.raises(TypeError, match="do_flip"):
        small()(picture(4, 4), do_flip=True)


def test_saves_and_loads(tmp_path):
    settings = {"image_mean": [1.0, 2.0, 4.0], "image_std": [1.0, 2.0, 3.0]}
    processor = small(**settings)
    processor.save_pretrained(tmp_path)
    loaded = AutoImageProcessor.from_pretrained(tmp_path)
    assert type(loaded) is FastRCNNImageProcessor
    assert loaded.size == processor.size
    assert {name: getattr(loaded, name) for name in settings} == settings


def test_every_picture_is_opened_by_a_list_of_formats():
    """A helper of transformers that opens pictures takes no list."""
    for path in (ROOT / "grounded_attention").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call):
                name = ast.unparse(call.func)
                assert name != "Image.open" or "formats=" in ast.unparse(call), path
                assert name.split(".")[-1] != "load_image", path
