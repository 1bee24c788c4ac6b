#!/usr/bin/env python3
"""Makes tests/data/templates/goldens.json: what Transformers renders for every template and conversation.

  tools/make_template_goldens.py [--check DIR]

The templates *.jinja beside the goldens follow what the families' own templates do and were written for this project;
SNIPPETS below are the constructs of Jinja one by one. --check renders the *.jinja files of another folder (real
templates that are not part of this repository) into DIR/goldens.json, for a look with KVANT_TEMPLATE_GOLDENS.
Needs transformers (with jinja2). Every render happens at 2024-07-26 12:00 UTC.
"""
import argparse
import datetime
import json
import os
from pathlib import Path

os.environ["TZ"] = "UTC"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import jinja2
from transformers.utils import chat_template_utils

OUT = Path(__file__).resolve().parent.parent / "tests/data/templates"
NOW = datetime.datetime(2024, 7, 26, 12, 0, 0)


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


chat_template_utils.datetime = FixedTime

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a \"city\" <now> & later.",
     "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Name, e.g. Zürich"},
                                                     "days": {"type": "integer", "enum": [1, 3, 7]}}, "required": ["city"]},
     "return": {"type": "string"}}},
    {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {
        "a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}}},
]
CALL = [{"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}}]
CONVERSATIONS = {
    "one": {"messages": [{"role": "user", "content": "Hello there"}]},
    "turns": {"messages": [{"role": "user", "content": "  Hi \n"}, {"role": "assistant", "content": "Hello! "},
                           {"role": "user", "content": "What's 2 + 2?\n<b>\"quoted\"</b> 你好 😀"}]},
    "system": {"messages": [{"role": "system", "content": " You are terse. "}, {"role": "user", "content": "Hi"},
                            {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Bye"}]},
    "answered": {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]},
    "thinking": {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "<think>\nhm, x\n</think>\n\nA"},
                              {"role": "user", "content": "Q2"}]},
    "reasoning": {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A", "reasoning_content": "because"}],
                  "variables": {"enable_thinking": False}},
    "tools": {"messages": [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "Weather?"}], "tools": TOOLS},
    "tool calls": {"messages": [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": "", "tool_calls": CALL},
                                {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "{\"t\": 21.5}"},
                                {"role": "assistant", "content": "21.5 degrees."}, {"role": "user", "content": "Thanks"}], "tools": TOOLS},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": "what?"}]}]},
    "wrong order": {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
    "wrong role": {"messages": [{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}]},
    "none": {"messages": []},
    "values": {"messages": [{"role": "user", "content": "x"}], "variables": {
        "n": 7, "f": 2.5, "s": "Hello, World", "e": "", "t": True, "l": [3, 1, 2], "d": {"b": 1, "a": [1, "x", None, True, 1.0]},
        "u": "héllo wörld ß", "m": [{"k": "b", "v": 2}, {"k": "A", "v": 1}, {"k": "b", "v": 3}], "w": "  a b\t\nc  ", "nested": {"x": {"y": [10, 20]}}}},
}

SNIPPETS = r"""
{{ n }} {{ f }} {{ s }} {{ t }} {{ l }} {{ d }} {{ none }} {{ [1, 'a\n"', "it's", none, true, 1.5, (1,), ()] }}
{{ n + 1 }} {{ n - 10 }} {{ n * 2 }} {{ n / 2 }} {{ n // 2 }} {{ -n // 2 }} {{ n % 4 }} {{ -n % 4 }} {{ n ** 2 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ 1 + 2 * 3 - 4 / 2 }} {{ (1 + 2) * 3 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 'a' ~ 1 ~ none ~ 2.0 }} {{ 'a' + 'b' * 3 }} {{ [1] + [2] }} {{ [0] * 3 }}
{{ 1 == 1.0 }} {{ 'a' == 'b' }} {{ 1 != 2 }} {{ 1 < 2 < 3 }} {{ 3 > 2 >= 3 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ true == 1 }}
{{ 'ell' in s }} {{ 'x' not in s }} {{ 3 in l }} {{ 'a' in d }} {{ 9 in l }} {{ 'a' in undefined_thing }}
{{ t and n }} {{ e or 'fallback' }} {{ not e }} {{ not t or n }} {{ 1 if e else 2 }} {{ 'x' if e }}|{{ undefined_thing }}|
{{ s[0] }} {{ s[-1] }} {{ s[1:3] }} {{ s[:-2] }} {{ s[::-1] }} {{ l[0] }} {{ l[-1] }} {{ l[1:] }} {{ l[::-1] }} {{ u[1] }} {{ u[4:8] }} {{ s[100:] }} {{ l[5] }} {{ l[:-1] }} {{ l[-9:2] }} {{ s[::2] }} {{ s[5:1:-2] }}
{{ d.a }} {{ d['b'] }} {{ d.missing }} {{ d.get('x', 'dflt') }} {{ d.get('x') }} {{ nested.x.y[1] }} {{ nested['x']['y'].0 }} {{ d['a'][1] }}
{{ d.items() | list }} {{ d.keys() | list }} {{ d.values() | list }} {% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for x in l %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}/{{ loop.revindex }}/{{ loop.revindex0 }}:{{ x }} {% endfor %}
{% for x in l %}{{ loop.previtem }}-{{ x }}-{{ loop.nextitem }};{{ loop.cycle('odd', 'even') }} {% endfor %}
{% for x in [] %}x{% else %}empty{% endfor %} {% for x in l if x > 1 %}{{ x }}{% else %}none{% endfor %} {% for x in l if x > 5 %}{{ x }}{% else %}none{% endfor %}
{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %} {% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for a, b in [[1, 2], (3, 4)] %}{{ a }}{{ b }}{% endfor %} {% for (a, b) in [[1, 2]] %}{{ a + b }}{% endfor %} {% for c in 'hé' %}[{{ c }}]{% endfor %} {% for k in d %}{{ k }}{% endfor %}
{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}
{% set ns = namespace(x=1, y='a') %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y }} {% set ns.z = [1] %}{{ ns.z }} {{ ns.nope }}
{% set a, b = 1, 2 %}{{ a }}{{ b }} {% set c = 1, 2 %}{{ c }} {% set txt %}  block {{ n }}  {% endset %}[{{ txt }}] {% set txt | upper | trim %}  block {{ n }}  {% endset %}[{{ txt }}]
{% if n > 5 %}big{% elif n > 2 %}mid{% else %}small{% endif %} {% if e %}a{% elif l %}b{% endif %} {% if not undefined_thing %}u{% endif %}
{% macro m(a, b='x', c=none) %}<{{ a }},{{ b }},{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(c=3, a=0) }}{{ m() }}
{% macro rec(k) %}{{ k }}{% if k > 0 %}{{ rec(k - 1) }}{% endif %}{% endmacro %}{{ rec(4) }}
{% macro wrap() %}[{{ caller() }}]{% endmacro %}{% call wrap() %}in {{ n }}{% endcall %} {% macro each(l) %}{% for i in l %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(i) each(l) %}<{{ i }}>{% endcall %}
{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %} {{ a }} {% filter upper %}abc {{ s }}{% endfilter %} {% filter replace('a', 'b') | trim %} aaa {% endfilter %}
{% raw %}{{ not }} {% this %}{% endraw %} {# a comment #}x{#- another -#} y {%- raw -%} z {%- endraw %}
a {{- n -}} b {{ n }} c {%- if t -%} d {%- endif -%} e {%+ if t %} f {% endif +%} g
{{ s | upper }} {{ s | lower }} {{ u | upper }} {{ 'hello wORLD-foo (bar) x_y' | title }} {{ 'hELLO world' | capitalize }} {{ w | trim }} {{ '--x--' | trim('-') }} {{ s | length }} {{ u | length }} {{ l | count }} {{ d | length }}
{{ s | replace('l', 'L') }} {{ s | replace('l', 'L', 1) }} {{ s.replace('o', '0') }} {{ s.replace('l', '', 2) }} {{ 'ab'.replace('', '-') }}
{{ l | first }} {{ l | last }} {{ s | first }} {{ [] | first }} {{ l | sum }} {{ l | min }} {{ l | max }} {{ l | sort }} {{ l | sort(reverse=true) }} {{ l | reverse | list }} {{ s | reverse }} {{ ['b', 'A', 'c'] | sort }} {{ ['b', 'A'] | sort(case_sensitive=true) }}
{{ l | join(', ') }} {{ l | join }} {{ m | map(attribute='k') | join('+') }} {{ m | join('|', attribute='v') }} {{ ['a', 'b'] | map('upper') | list }} {{ l | map('string') | join('-') }} {{ m | map(attribute='zz', default='?') | list }}
{{ m | selectattr('k', 'equalto', 'b') | map(attribute='v') | list }} {{ m | rejectattr('k', 'eq', 'b') | list | length }} {{ l | select('odd') | list }} {{ l | reject('gt', 1) | list }} {{ [0, 1, '', 'a'] | select | list }} {{ m | selectattr('v') | list | length }}
{{ none | selectattr('a') | list }} {{ none | map('upper') | list }} {{ none | reject('odd') | list }}
{{ m | sort(attribute='v') | map(attribute='v') | list }} {{ m | sort(attribute='k,v') if false else '' }} {{ m | groupby('k') | list }} {% for k, g in m | groupby('k') %}{{ k }}:{{ g | map(attribute='v') | list }} {% endfor %}
{{ ['a', 'b', 'A', 'a'] | unique | list }} {{ d | dictsort }} {{ d | items | list }} {{ l | batch(2) | list }} {{ l | batch(2, 0) | list }} {{ d | list }}
{{ undefined_thing | default('D') }} {{ e | default('D') }} {{ e | default('D', true) }} {{ none | d('D') }} {{ d.nope | default([]) | length }} {{ undefined_thing is defined }} {{ e | default('x', boolean=True) }}
{{ '42' | int }} {{ 'x' | int }} {{ 'x' | int(9) }} {{ '3.7' | int }} {{ 3.9 | int }} {{ '2.5' | float }} {{ n | float }} {{ n | string + 'x' }} {{ -3 | abs }} {{ 2.567 | round(2) }} {{ 2.5 | round }} {{ 3.2 | round(0, 'ceil') }} {{ 3.7 | round(method='floor') }}
{{ d | tojson }} {{ l | tojson }} {{ s | tojson }} {{ u | tojson }} {{ '<&\'">\n\t\u0001\\/' | tojson }} {{ none | tojson }} {{ [] | tojson }} {{ {} | tojson }} {{ 1.0 | tojson }} {{ true | tojson }}
{{ d | tojson(indent=2) }} {{ nested | tojson(indent=4) }} {{ [] | tojson(indent=2) }} {{ d | tojson(separators=(',', ':')) }} {{ d | tojson(sort_keys=true) }} {{ u | tojson(ensure_ascii=true) }}
{{ 'a\nb\n\nc' | indent }} {{ 'a\nb\n\nc' | indent(2, true) }} {{ 'a\n\nb' | indent(1, blank=true) }} {{ 'x' | center(6) }}| {{ 'a b, c' | wordcount }} {{ '<a & "b">' | e }} {{ '<a>' | safe }} {{ '%s-%d' | format('a', 3) }} {{ d | attr('nope') }}
{{ n is defined }} {{ x is undefined }} {{ none is none }} {{ n is none }} {{ s is string }} {{ n is string }} {{ n is number }} {{ n is integer }} {{ f is float }} {{ d is mapping }} {{ l is mapping }} {{ l is iterable }} {{ s is iterable }} {{ n is iterable }} {{ l is sequence }} {{ n is not none }} {{ t is boolean }} {{ t is true }} {{ n is false }} {{ t is number }}
{{ n is odd }} {{ n is even }} {{ 9 is divisibleby 3 }} {{ n is eq 7 }} {{ n is ne(7) }} {{ n is gt 5 }} {{ n is lessthan 5 }} {{ 'a' is in ['a'] }} {{ 'AB' is upper }} {{ 'ab' is lower }} {{ n is sameas n }} {{ 'upper' is filter }} {{ 'odd' is test }} {{ range is callable }} {{ n is callable }} {{ n is not odd and t }}
{{ s.upper() }} {{ s.lower() }} {{ w.strip() }}|{{ w.lstrip() }}|{{ w.rstrip() }}| {{ '..a..'.strip('.') }} {{ 'abc'.lstrip('ab') }} {{ s.split(', ') }} {{ w.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a b  c'.split(None, 1) }} {{ 'a--b'.split('--')[-1] }}
{{ s.startswith('Hell') }} {{ s.endswith('x') }} {{ s.startswith(('x', 'H')) }} {{ s.find('W') }} {{ s.find('zz') }} {{ u.find('w') }} {{ s.rfind('o') }} {{ s.index('o') }} {{ s.count('l') }} {{ ', '.join(['a', 'b']) }} {{ '{} {}'.format(1, 'x') }} {{ '{a}{{}}{0}'.format(1, a=2) }}
{{ 'a\nb\r\nc'.splitlines() }} {{ 'abc'.title() }} {{ "they're bill's".title() }} {{ 'abc'.capitalize() }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }} {{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ 'ab'.isalpha() }} {{ ' '.isspace() }} {{ 'A'.isupper() }} {{ 'a'.islower() }}
{{ l.index(2) }} {{ l.count(1) }} {{ range(3) | list }} {{ range(1, 7, 2) | list }} {{ range(3, 0, -1) | list }} {{ dict(a=1, b='x') }} {{ dict(d, c=2) | length }} {{ {'a': 1, 'b': [2, {'c': none}]} }} {{ {'x': 1}.x }} {{ {1: 'one'}[1] }}
{{ '%s is %d years, %.2f%% %5s|%-5s|%05d' % ('x', 3, 1.5, 'a', 'b', 42) }} {{ '%s' % 'one' }} {{ '%r' % 'q' }} {{ '%x' % 255 }}
{{ 'é' ~ '\u00e9' ~ '\x41' ~ '\t' ~ "\"" ~ '\'' ~ '\\' ~ '\q' }} {{ "a" 'b' "c" }} {{ 1_000 }} {{ 1e3 }} {{ 1.5e-7 }} {{ 1e22 }} {{ 0.1 + 0.2 }} {{ 1e16 }} {{ 123456789012.0 }} {{ 5 // 2.0 }} {{ 1 / 3 }}
{{ messages[0]['role'] }} {{ messages | length }} {{ messages[-1].content }} {{ messages[0] }} {{ bos_token }}{{ eos_token }} {{ add_generation_prompt }} {{ tools is none }} {{ tools }} {{ documents }}
{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%dT%H:%M') }}
{%- generation -%} marked {%- endgeneration %} {% if strftime_now is defined %}yes{% endif %} {% if foo is defined and foo %}no{% endif %} {{ l is sequence and l | length > 2 }}
{{ ('a' if t else 'b') ~ ('c' if not t else 'd') }}
{{ (n > 5) | string | lower }} {{ not n > 5 }} {{ n in [7] and not e }} {{ l[n - 7] }} {{ (l | length) - 1 }} {{ -n | abs }} {{ -l[0] }} {{ l | length == 3 }} {{ (1, 2)[0] }} {{ 'a' ~ 'b' | upper }} {{ s[l[1]] }}
{% set loop_messages = messages[1:] %}{{ loop_messages | length }}{% set x = [] %}{{ x }}{% if x == [] %}eq{% endif %}{% set y = {'a': 1} %}{% if y == {'a': 1} %}eq{% endif %} {{ none == false }} {{ '' == none }} {{ 0 == false }}
"""

FAILING = r"""
{{ raise_exception('my own message') }}
{% if messages | length > 0 %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}
{{ undefined_thing.x }}
{{ undefined_thing + 1 }}
{{ 'a' + 1 }}
{{ 1 / 0 }}
{{ n() }}
{{ d.a.append(4) }}
{{ l.append(1) }}
{{ d.update({}) }}
{% for x in none %}{% endfor %}
{% for a, b in [[1]] %}{% endfor %}
{{ 'x' in 5 }}
{{ 1 < 'a' }}
{{ s | nosuchfilter }}
{{ s is nosuchtest }}
{{ undefined_thing() }}
{{ undefined_thing | tojson }}
{{ 5 | length }}
{% set d.x = 1 %}
{% set ns = namespace(_x=1) %}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{{ range(1000001) }}
{{ l[1:2:0] }}
{% if %}x{% endif %}
{% for x in l %}
{{ n
{% endif %}
{{ 'abc }}
{% nosuchtag %}
{{ n n }}
{# no end
{% raw %} x
{{ ] }}
{% set = 1 %}
{{ messages.__class__.__mro__ }}
{{ ''.format.__globals__.x }}
{{ [].sort() }}
"""


def render(template, conversation, add_generation_prompt):
    messages = [{k: v for k, v in m.items() if v is not None} for m in conversation["messages"]]
    try:
        text, _ = chat_template_utils.render_jinja_template(
            conversations=[messages], tools=conversation.get("tools"), chat_template=template, add_generation_prompt=add_generation_prompt,
            bos_token="<BOS>", eos_token="<EOS>", **conversation.get("variables", {}))
        return {"text": text[0]}
    except jinja2.exceptions.TemplateError as error:
        own = type(error) is jinja2.exceptions.TemplateError  # what raise_exception() raises
        return {"raises": error.message if own else ""}
    except (TypeError, ValueError, ZeroDivisionError, AttributeError, OverflowError, KeyError) as error:
        return {"raises": ""}


def cases_of(folder):
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_bytes().decode("utf-8")
        for name, conversation in CONVERSATIONS.items():
            for prompt in (False, True):
                yield {"file": path.name, "conversation": name, "add_generation_prompt": prompt, **render(source, conversation, prompt)}


def snippet_cases():
    for line in SNIPPETS.strip().split("\n"):
        result = render(line, CONVERSATIONS["values"], True)
        if "raises" in result:
            print("snippet raises:", line[:100], flush=True)
        yield {"template": line, "conversation": "values", "add_generation_prompt": True, **result}
    multi = ["{% if true %}\n  x\n{% endif %}\n  {% for i in [1,2] %}\n    {{ i }}\n  {% endfor %}\ny\n",
             "a\n    {%- if true %}\n  b\n    {%- endif %}\n\n\nc\n\n", "  {# c #}\n x {# d #}\n{#- e -#}\n y", "{%+ if true %}\n z{% endif %}\n\t{% set x = 1 -%}\n   {{ x }}\n",
             "a\r\nb\r{{ 'x\r\ny' }}\r\n", "{{ 1 }}\n\n", "\n{{ 1 }}\n{% raw %}\n  {{ x }}\n{% endraw %}\nend", "  {{ 1 }}\n  {% raw %} {% endraw %}\n z",
             "{% macro m() %}\n  hi\n{% endmacro %}\n{{ m() }}|\n{% set x %}\n q\n{% endset %}\n{{ x }}|", "{{\n n\n +\n 1 }}{% if\n t\n %}k{% endif %}", "", "\n", "{", "{{ '{{' }} {{ '%}' }} { % x } }} %}"]
    for source in multi:
        yield {"template": source, "conversation": "values", "add_generation_prompt": False, **render(source, CONVERSATIONS["values"], False)}
    for line in FAILING.strip().split("\n"):
        result = render(line, CONVERSATIONS["values"], False)
        if "raises" not in result:
            print("should raise:", line, result, flush=True)
        yield {"template": line, "conversation": "values", "add_generation_prompt": False, **result}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", type=Path)
    args = parser.parse_args()
    folder = args.check or OUT
    cases = list(cases_of(folder)) + ([] if args.check else list(snippet_cases()))
    (folder / "goldens.json").write_text(json.dumps({"conversations": CONVERSATIONS, "cases": cases}, ensure_ascii=False, indent=0), "utf-8")
    print(f"{len(cases)} cases, {sum('raises' in c for c in cases)} of them raise")


if __name__ == "__main__":
    main()
