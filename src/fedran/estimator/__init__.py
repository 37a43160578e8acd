"""The front in the style of scikit-learn: models in closed form that can be added."""

from fedran.estimator.classifier import FedRANClassifier
from fedran.estimator.regressor import FedRANRegressor

__all__ = ["FedRANClassifier", "FedRANRegressor"]
