# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The names under which transformers finds the classes of a checkpoint, by the suffixes of the class names."""

# Suffix of a class name -> the Auto class that finds the class. `AutoModel` is for the base model only.
AUTO_CLASSES = {
    "Config": "AutoConfig",
    "Model": "AutoModel",
    "Features": "AutoModel",
    "ForMultipleChoice": "AutoModelForMultipleChoice",
    "ForPreTraining": "AutoModelForPreTraining",
    "ForVisualQuestionAnswering": "AutoModelForVisualQuestionAnswering",
}


def make_auto_map(model_type: str, *names: str) -> dict[str, str]:
    """
    The `auto_map` of a configuration: the location of each class that is saved with a checkpoint.
    """
    found = {}
    for name in names:
        auto = next((auto for end, auto in AUTO_CLASSES.items() if name.endswith(end)), name)
        file = "configuration" if auto == "AutoConfig" else "modeling"
        found[auto] = f"{file}_{model_type}.{name}"
    return found


__all__ = ["AUTO_CLASSES", "make_auto_map"]
