# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Jobs over data with two workers of Ray on this machine."""

from pathlib import Path

import pyarrow as pa
import pytest
import ray
import ray.data

from tests.helpers import job_models
from tests.helpers.job_models import JOBS, by_key, check_scores, dataset

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Four logical processors: the workers keep two of them."""
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": variables})
        yield
        ray.shutdown()


def run(job, *arguments):
    rows = ray.data.from_huggingface(dataset()).repartition(4)
    workers = ray.data.ActorPoolStrategy(size=2)
    options = {"batch_size": 2, "batch_format": "pyarrow", "compute": workers}
    found = rows.map_batches(job, fn_constructor_args=arguments, **options)
    return pa.concat_tables(ray.get(found.to_arrow_refs()))


def test_two_workers_score_heads():
    check_scores(run(job_models.ScoreHeads, job_models.make_llava).to_pylist())


def test_the_batch_of_a_killed_worker_is_done_again_and_nothing_twice(tmp_path):
    found = run(job_models.KilledOnce, str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2, "one process was killed, another one did its batch"
    assert by_key(found, "regions") == by_key(JOBS["regions"](dataset().to_dict()), "regions")
