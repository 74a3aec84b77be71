# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Trains a recipe as a job on the Hub's machines."""
