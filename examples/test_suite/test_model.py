"""A test suite in which every test compiles: each graph is compiled once for all of pytest's workers.

    pip install pytest-xdist
    pytest -n 2 examples/test_suite

The last line says how many graphs were compiled, joined and cached. Run it again, and all are cached.
"""

import pytest
import torch

WIDTHS = (8, 16, 24)


def make_model(width: int) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, width))


@pytest.mark.parametrize("attempt", range(2))
@pytest.mark.parametrize("width", WIDTHS)
def test_compiled_model_gives_the_eager_result(width: int, attempt: int) -> None:
    torch.compiler.reset()  # every test compiles again, as in a separate process
    model = make_model(width)
    data = torch.randn(4, width)
    compiled = torch.compile(model, backend="fxpool")
    torch.testing.assert_close(compiled(data), model(data), rtol=1e-4, atol=1e-5)
