"""Losses on small tensors: classification, distillation, elastic weights, synthesis."""

from __future__ import annotations

from collections.abc import Mapping

from fedran.methods.trained.training.lazy_torch import Tensor, torch


def new_class_loss(logits: Tensor, codes: Tensor, known: int) -> Tensor:
    """Cross-entropy over the logits of the classes from ``known`` on; codes are all >= known."""
    return torch.nn.functional.cross_entropy(logits[:, known:], codes - known)


def all_class_loss(logits: Tensor, codes: Tensor) -> Tensor:
    """Cross-entropy over all logits."""
    return torch.nn.functional.cross_entropy(logits, codes)


def distillation(logits: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """-mean_i sum_c softmax(teacher_i / T)_c log softmax(logits_i / T)_c, without a factor T^2.

    The student's first columns are compared, as many as the teacher has.
    """
    student = torch.log_softmax(logits[:, : teacher.shape[1]].float() / temperature, 1)
    return -(torch.softmax(teacher.float() / temperature, 1) * student).sum(1).mean()


def elastic_penalty(
    weights: Mapping[str, Tensor], anchor: Mapping[str, Tensor], fisher: Mapping[str, Tensor]
) -> Tensor:
    """1/2 sum F (theta - theta*)^2; of a tensor that grew, the rows that the anchor knows."""
    parts = [
        (fisher[name] * (weights[name][: len(then)] - then) ** 2).sum()
        for name, then in anchor.items()
    ]
    return 0.5 * torch.stack(parts).sum()


def statistics_loss(mean: Tensor, variance: Tensor, to_mean: Tensor, to_variance: Tensor) -> Tensor:
    """||mean - mean*|| + ||var - var*|| of one BatchNorm layer."""
    return torch.linalg.vector_norm(mean - to_mean) + torch.linalg.vector_norm(
        variance - to_variance
    )


def divergence(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(teacher || student) of every row at a temperature, times T^2."""
    log_student = torch.log_softmax(student.float() / temperature, 1)
    log_teacher = torch.log_softmax(teacher.float() / temperature, 1)
    rows = (log_teacher.exp() * (log_teacher - log_student)).sum(1)
    return rows * temperature**2


def adversarial_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Minus the divergence where both name the same class: images on which they differ."""
    agree = student.argmax(1) == teacher.argmax(1)
    return -(divergence(student, teacher) * agree).mean()
