import datetime as dt
import json
from typing import Any

import pytest
from jinja2 import TemplateError as JinjaError
from tests.fakes_text import byte_tokenizer
from tests.shared_data import shared_data

from kokuban.core.errors import ModelError, TemplateError
from kokuban.text.chat import ChatTemplate
from kokuban.text.sandbox import Sandbox, counting

TOKENIZER = byte_tokenizer()
MESSAGES = [{"role": "user", "content": "q"}]

# This template writes its tools as they are: Python's repr here, as in training; JavaScript's
# JSON in the golden.
DIFFERS = {"MadeAgents/Hammer2.1"}


def goldens() -> dict[str, dict[str, Any]]:
    groups = json.loads(shared_data("templates/chat_template_goldens.json").read_text())
    return {name: case for group in groups.values() for name, case in group.items()}


def test_real_templates_render_as_their_models_were_trained() -> None:
    sandbox = Sandbox(lambda: dt.datetime(2025, 7, 10))
    cases = goldens()
    wrong = set()
    for name, case in cases.items():
        with counting():
            text = sandbox.from_string(case["chat_template"]).render(**case["data"])
        if text != case["target"]:
            wrong.add(name)

    assert len(cases) == 53
    assert wrong == DIFFERS


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__'] }}",
        "{{ ''|attr('__class__') }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__closure__ }}",
        "{{ lipsum.__globals__ }}",
        "{{ '{0.__class__}'.format('') }}",
        "{{ '%s'.__mod__('x') }}",
        "{% for m in messages %}{% if m.update({'role': 'x'}) %}{% endif %}{% endfor %}",
        "{{ messages.append(1) }}",
        "{{ messages.clear() }}",
        "{% include 'x' %}",
        "{% import 'x' as y %}",
        "{% extends 'x' %}",
        "{% set x = self.__init__ %}{{ x.__globals__ }}",
        "{{ undefined_name.x }}",
        "{{ 1 / 0 }}",
        "{{ messages[0] + 1 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_template_that_reaches_out_or_fails_is_refused(template: str) -> None:
    """Keeps B81 out: docs/bugbank.md."""
    with pytest.raises((TemplateError, ModelError)):
        ChatTemplate(template, TOKENIZER).render_chat(MESSAGES)


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% for a in range(100000) %}{% set x = range(100000) | list %}{% endfor %}",
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * 'a' }}",
        "{{ [0] * 1000000000 }}",
        "{{ 10 ** 1000000000 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000) }}",
        "{{ ('a' * 1000000) | replace('a', 'b' * 1000) }}",
        "{{ (['a' * 1000000] * 1000) | join }}",
        "{{ ('a' * 1000000).join(['b'] * 1000) }}",
        "{{ range(100000000) | list }}",
        "{% set ns = namespace(x='a') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}"
        "{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for a in range(99) %}{% set ns.x = [ns.x ~ ns.x][0] %}"
        "{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}"
        "{% endfor %}",
        "{% set ns = namespace(x=9) %}{% for a in range(99) %}{% set ns.x = ns.x * ns.x %}"
        "{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for a in range(99) %}"
        "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
        "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns = namespace(x='a') %}"
        "{% for a in range(99) %}{% set ns.x = m(ns.x) %}{% endfor %}",
        "{% for a in range(99999) %}{{ 'a' * 1000000 }}{% endfor %}",
    ],
)
def test_a_template_that_does_too_much_is_stopped(template: str) -> None:
    """Keeps B82 out: docs/bugbank.md."""
    with pytest.raises(TemplateError, match=r"chat template|the prompt is above"):
        ChatTemplate(template, TOKENIZER).render_chat(MESSAGES)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ {'b': 'é<', 'a': [1, none, true]} | tojson }}", '{"b": "é<", "a": [1, null, true]}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":2,"b":1}'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% for i in [1, 2] %}{{ loop.length }}{{ loop.last }}{% endfor %}", "2False2True"),
        ("{% for k, v in {'a': 1}.items() %}{{ k ~ v }}{% endfor %}", "a1"),
        ("{% for x in missing %}{{ x }}{% else %}none{% endfor %}", "none"),
        (
            "{% for x in [1, [2]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}",
            "12",
        ),
        ("a{% generation %}b{{ 1 }}{% endgeneration %}c", "ab1c"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{{ '%s-%03d' % ('a', 7) }}{{ '{:>3}'.format(1) }}", "a-007  1"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x }}", "a1"),
        ("{% set x | upper %}a{% endset %}{{ x }}", "A"),
        (
            "{{ ['a', 'b'] | join(', ') }}{{ 'abc'.replace('b', 'x') | replace('a', 'y') }}",
            "a, byxc",
        ),
    ],
)
def test_what_templates_use_works(template: str, text: str) -> None:
    assert ChatTemplate(template, TOKENIZER).render_chat(MESSAGES) == text


def test_counting_bounds_the_work_exactly() -> None:
    template = Sandbox(dt.datetime.now).from_string("{% for i in [1, 2, 3] %}{% endfor %}")

    with counting(3):
        template.render()
    with counting(2), pytest.raises(JinjaError, match="more than 2 steps"):
        template.render()
