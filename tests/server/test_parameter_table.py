"""Every field of the table, at its edges and beyond them, against the server."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.parameter_values import JUNK, bad, good
from tests.server.asgi import client
from tests.server.fakes import FakeEngine, served

from kokuban.server.parameter import Api, Fate, Parameter
from kokuban.server.parameters import TABLE

PATHS = {Api.CHAT: "/v1/chat/completions", Api.COMPLETIONS: "/v1/completions"}
BASES = {
    Api.CHAT: {"model": '"m"', "messages": '[{"role":"user","content":"p"}]'},
    Api.COMPLETIONS: {"model": '"m"', "prompt": '"p"'},
}
SMALL = {"max_tokens": "1", "n": "1"}
"""What keeps answers short where the field in question is another."""

JSON = {"content-type": "application/json"}
CASES = [(api, each) for api in PATHS for each in TABLE if api in each.apis]
SERVED = [case for case in CASES if case[1].fate is Fate.SERVED]
IDS = [f"{api.name.lower()}-{each.name}" for api, each in SERVED]  # type: ignore[union-attr]


def body(api: Api, fields: dict[str, str]) -> bytes:
    """JSON of the fields' JSON texts."""
    texts = {**BASES[api], **SMALL, **fields}
    return ("{" + ",".join(f'"{name}":{text}' for name, text in texts.items()) + "}").encode()


@pytest.mark.parametrize(("api", "parameter"), SERVED, ids=IDS)
async def test_a_field_takes_what_the_table_says_and_refuses_the_rest_by_name(
    api: Api, parameter: Parameter
) -> None:
    """Keeps B12, B26, B27 and B28 out: docs/bugbank.md."""
    async with client(served(engine=FakeEngine(max_context_tokens=1024))) as http:
        for value in good(parameter):
            raw = body(api, {parameter.name: value})
            response = await http.post(PATHS[api], content=raw, headers=JSON)
            assert response.status_code == 200, (value, response.text)
        for value in bad(parameter):
            raw = body(api, {parameter.name: value})
            response = await http.post(PATHS[api], content=raw, headers=JSON)
            assert response.status_code == 400, (value, response.text)
            param = response.json()["error"]["param"]
            assert param.split("[")[0].split(".")[0] == parameter.name, value


def values_of(parameter: Parameter) -> st.SearchStrategy[str]:
    """JSON texts for a field: mostly such as it takes, some that it must not, some of anything."""
    if parameter.kind == "any":
        return st.sampled_from(("null", *JUNK))
    floats = st.floats(allow_nan=False, allow_infinity=False).map(json.dumps)
    return st.one_of(
        st.sampled_from(good(parameter)),
        st.sampled_from(bad(parameter) or JUNK),
        st.sampled_from(JUNK),
        floats if "number" in parameter.json_types else st.integers().map(json.dumps),
    )


def bodies(api: Api) -> st.SearchStrategy[dict[str, str]]:
    """A few fields of a route with values of all kinds."""
    table = {each.name: values_of(each) for kind, each in CASES if kind is api}
    return st.dictionaries(st.sampled_from(sorted(table)), st.none(), max_size=5).flatmap(
        lambda names: st.fixed_dictionaries({name: table[name] for name in names})
    )


@pytest.mark.parametrize("api", PATHS)
@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
async def test_any_fields_together_are_served_or_refused_and_never_a_fault(
    api: Api, data: st.DataObject
) -> None:
    fields = data.draw(bodies(api))
    model = served(engine=FakeEngine(max_context_tokens=1024))
    async with client(model) as http:
        response = await http.post(PATHS[api], content=body(api, fields), headers=JSON)

    assert response.status_code in (200, 400, 404), (fields, response.text)
    if response.status_code == 400:
        error: dict[str, Any] = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert set(error) == {"message", "type", "param", "code"}
    if response.status_code == 404:
        assert "model" in fields
