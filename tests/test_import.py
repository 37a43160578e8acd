"""``import fedran`` is fast: scikit-learn, pandas and torch are imported only when needed."""

import subprocess
import sys

import pytest

import fedran


def run(code: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(
    "code",
    [
        "import fedran",
        "from fedran.cli.main import run; run(['--version'])",
        "from fedran.cli.main import run; run(['--help'])",
    ],
)
def test_scikit_learn_and_torch_are_not_imported(code):
    heavy = "('sklearn', 'pandas', 'torch', 'matplotlib')"
    report = f"import sys; print([n for n in {heavy} if n in sys.modules])"
    assert run(f"{code}\n{report}").splitlines()[-1] == "[]"


def test_the_estimator_is_imported_on_first_use():
    code = (
        "import sys, fedran\n"
        "clf = fedran.FedRANClassifier(out_features=8)\n"
        "from fedran import FedRANClassifier\n"
        "print(type(clf) is FedRANClassifier, 'sklearn' in sys.modules)"
    )
    assert run(code) == "True True\n"


def test_every_public_name_is_listed_and_exists():
    assert set(fedran.__all__) <= set(dir(fedran))
    for name in fedran.__all__:
        assert getattr(fedran, name) is not None
    with pytest.raises(AttributeError, match="module 'fedran' has no attribute 'Classifier'"):
        fedran.Classifier  # noqa: B018
