"""Leads llama.cpp's server tests to a server that runs already: `run.py` makes it their conftest.

Their own conftest loads models from a hub. Paths of OpenAI's API get the `/v1` that we want.
"""

from typing import Any

import requests
import utils  # Theirs.

WITH_V1 = ("/chat/completions", "/models", "/responses")
REQUEST_S = 60

_url_of = utils.ServerProcess.make_url
_post = requests.post


def _url(self: Any, path: str, host: str | None = None) -> Any:
    return _url_of(self, f"/v1{path}" if path.startswith(WITH_V1) else path, host)


def _bounded(url: str, **options: Any) -> requests.Response:
    return _post(url, **{"timeout": REQUEST_S, **options})


utils.ServerProcess.make_url = _url
requests.post = _bounded
