"""Options and fixtures that the benches share."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from text import text_tokens


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--recording",
        action="append",
        type=Path,
        default=[],
        help="measure on the text of this recording (may be given several times)",
    )


@pytest.fixture(scope="session")
def text(request: pytest.FixtureRequest) -> npt.NDArray[np.int32]:
    """Token ids of real text."""
    return text_tokens(request.config.getoption("--recording"))
