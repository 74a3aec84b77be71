"""A plugin of ms-swift (`--external_plugins`): adds attention supervision to `swift sft`."""

import grounded_attention.training.trainers.ms_swift  # noqa: F401
