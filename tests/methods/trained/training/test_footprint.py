"""The estimate of memory counts rows, replay and synthetic images."""

from dataclasses import replace

import pytest

from fedran.bench.run.memory import footprint
from fedran.data.dataset import as_images
from helpers.toy_training import make_tasks, quick

ROW = 8 * 8 * 3


@pytest.fixture
def estimate(dataset):
    images, stream = as_images(dataset), make_tasks(dataset)
    return lambda method: footprint(method, images.X_train, stream)


def test_an_accelerator_also_holds_the_rows_of_all_clients_of_a_task(estimate, dataset):
    method = quick("finetune", network="small")
    there = replace(method, device="cuda")
    largest = max(sum(len(r) for r in t.rows) for t in make_tasks(dataset).tasks)
    assert estimate(there).tensors - estimate(method).tensors == ROW * largest
    assert estimate(there).messages == estimate(method).messages


@pytest.mark.parametrize(("memory_size", "kept"), [(1, 3), (8, 24), (1000, 48)])
def test_exemplars_count_up_to_the_number_of_rows(estimate, memory_size, kept):
    bare = estimate(quick("fedlwf", network="small"))
    method = quick("fedicarl", network="small", memory_size=memory_size)
    assert estimate(method).tensors - bare.tensors == ROW * kept
    published = replace(method, flavour="as_published")
    assert estimate(published).tensors - bare.tensors == ROW * 48


def test_synthetic_images_count_at_the_server_the_clients_and_in_messages(estimate):
    few, many = (estimate(quick("target", synthesis_rounds=n)) for n in (2, 5))
    images = 3 * quick("target").synthetic_batch
    assert many.tensors - few.tensors == ROW * images * (3 + 2)
    assert many.messages - few.messages == ROW * images
