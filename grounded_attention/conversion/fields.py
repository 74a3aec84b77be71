# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The fields of a configuration and their source: the file, --config, or an assumption; errors of the converters."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from huggingface_hub.errors import StrictDataclassError

from grounded_attention.utils.named_types import Columns, Fields

if TYPE_CHECKING:  # the help of `convert` needs the errors alone
    from transformers import PreTrainedConfig

_MOST_NAMES = 3


class CheckpointError(ValueError):
    """A file that cannot be converted; the message contains the file or key, what was found and what was expected."""


class OverrideError(CheckpointError):
    """A wrong field in --config, or a field of --config that contradicts the file."""


def name_some(names: Iterable[str]) -> str:
    """The first three names and the number of the others, for example `a, b, c and 5 more`."""
    names = list(names)
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


# Properties of a configuration that it stores in id2label.
_PROPERTIES = ("answers", "num_labels")

COUNTED = "counted in the keys; the file does not show whether its last layers are missing"

Config = TypeVar("Config", bound="PreTrainedConfig")


@dataclass
class ConfigFields:
    """Fields of a configuration, grouped by their source."""

    read: Fields = field(default_factory=dict)
    given: Fields = field(default_factory=dict)
    assumed: Fields = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    nested: dict[str, "ConfigFields"] = field(default_factory=dict)

    def values(self) -> Fields:
        """All fields, as arguments of the configuration class."""
        return {
            **self.assumed,
            **self.read,
            **self.given,
            **{name: fields.values() for name, fields in self.nested.items()},
        }

    def account(self) -> dict[str, Fields]:
        """The fields by source for conversion.json; nested fields have names such as `vision_config.depths`."""
        parts = {name: dict(getattr(self, name)) for name in ("read", "given", "assumed", "notes")}
        for name, fields in self.nested.items():
            for part, inner in fields.account().items():
                parts[part] |= {f"{name}.{key}": value for key, value in inner.items()}
        return parts


def settle_fields(
    read: Columns,
    assumed: Columns,
    overrides: Columns,
    config_class: "type[PreTrainedConfig]",
    public: Sequence[Columns],
) -> ConfigFields:
    """Decides every field. A given field must agree with the file, and is used if the file does not determine it."""
    overrides = _check_given(overrides, config_class)
    for name in read.keys() & overrides.keys():
        if read[name] != overrides[name]:
            raise OverrideError(
                f"--config gives {name} {overrides[name]!r}, but the tensors of the file have "
                f"{read[name]!r}: the file is incomplete or of another kind, or --config is wrong."
            )
    fields = ConfigFields(dict(read), overrides, {k: v for k, v in assumed.items() if k not in overrides})
    _settle_by_width(fields, public)
    return fields


def _settle_by_width(fields: ConfigFields, public: Sequence[Columns]) -> None:
    width, *names = public[0]
    if width not in fields.read:
        return
    same = [config for config in public if config[width] == fields.read[width]]
    for name in (name for name in names if name not in fields.given):
        values = [config[name] for config in same]
        place = f"{width} {fields.read[width]}"
        if name in fields.read:
            count = fields.read[name]
            if values and count not in values:
                expected = " or ".join(map(str, values))
                raise CheckpointError(
                    f"the keys of the file have {name} {count}, but public files with {place} have {expected}: "
                    f'tensors are missing. If the file is right, give --config a file with {{"{name}": {count}}}.'
                )
            fields.notes[name] = f"counted in the keys; public files with {place} have the same" if values else COUNTED
        elif values:
            fields.assumed[name] = values[0]
            fields.notes[name] = f"value of public files with {place}; shapes do not determine it"
        else:
            raise CheckpointError(
                f"{name} cannot be read from the shapes, and no public file has {place}; give "
                f'--config a file with {{"{name}": ...}}.'
            )


def _check_given(overrides: Columns, config_class: "type[PreTrainedConfig]") -> Fields:
    """Checks that the given fields exist, and returns them with their main names."""
    known = {*config_class().to_dict(), *config_class.attribute_map, *_PROPERTIES}
    unknown = sorted(set(overrides) - known)
    if unknown:
        raise OverrideError(
            f"--config has the unknown configuration field {unknown[0]}; expected fields of {config_class.__name__}."
        )
    if overrides.get("model_type", config_class.model_type) != config_class.model_type:
        raise OverrideError(
            f"--config has model_type {overrides['model_type']!r}, expected {config_class.model_type!r} or none."
        )
    named = {config_class.attribute_map.get(name, name): value for name, value in overrides.items()}
    for name, value in named.items():
        if name.startswith("num_") and isinstance(value, int) and value < 1:
            raise OverrideError(f"--config gives {name} {value}, expected a positive number.")
    return named


def make_config(config_class: type[Config], fields: ConfigFields) -> Config:
    """Makes the configuration; raises an `OverrideError` if its fields are inconsistent."""
    try:
        return config_class(**fields.values())
    except (
        StrictDataclassError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:  # transformers raises all of these types
        raise OverrideError(f"the configuration is inconsistent: {' '.join(str(error).split())}") from error
