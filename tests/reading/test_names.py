"""The names that a cell needs from cells before it, and those that it binds, case by case."""

import pytest

from course_utils.reading.names import names_of


@pytest.mark.parametrize(
    ("source", "needed", "bound"),
    [
        ("y = x + 1", "x", "y"),
        ("x = 1\nx = x + 1", "", "x"),
        ("x += 1", "x", "x"),
        ("for i in range(n):\n    total = i\nprint(total)", "n", "i total"),
        ("squares = [a * k for a in data if a > low]", "data k low", "squares"),
        ("pairs = {a: b for a, b in zip(a, c)}", "a c", "pairs"),
        ("nested = [y for x in rows for y in x]", "rows", "nested"),
        ("def f(a, b=default):\n    c = a + outer\n    return c", "default", "f"),
        ("def f(a):\n    return a + outer\nf(1)", "outer", "f"),
        ("def f():\n    return g()\ndef g():\n    return outer\nf()", "outer", "f g"),
        ("def f():\n    return late\nlate = 1\nf()", "", "f late"),
        ("def f():\n    def g():\n        return x\n    x = 1\n    return g()\nf()", "", "f"),
        ("def f(n):\n    return f(n - 1) if n else 0\nf(3)", "", "f"),
        ("key = lambda a: a + outer", "outer", "key"),
        ("import numpy as np\nfrom math import pi\nimport os.path\nnp.array(pi)", "", "np pi os"),
        ("with open(path) as file:\n    text = file.read()", "path", "file text"),
        ("try:\n    x = 1\nexcept ValueError as error:\n    print(error)\nprint(x)", "", "error x"),
        ("if (size := len(data)) > 3:\n    print(size)", "data", "size"),
        ("class A(Base):\n    x = 1\n    def f(self):\n        return outer\n", "Base", "A"),
        ("class A:\n    def f(self):\n        return outer\nA()", "outer", "A"),
        ("@decorate\ndef f(*a, **k):\n    return a, k", "decorate", "f"),
        ("print(f'{value:{width}}')", "value width", ""),
        ("table[row]['x'] = line.text", "line row table", ""),
        ("(a, b), *c = data\nprint(a, b, c)", "data", "a b c"),
        ("%matplotlib inline\nx = 1", "", "x"),
        ("match = 1\nglobals()", "", "match"),
    ],
)
def test_names_of_a_cell(source, needed, bound):
    names = names_of(source)
    assert names.needs == set(needed.split())
    assert names.binds == set(bound.split())


def test_a_name_bound_on_one_way_only_is_taken_for_bound():
    names = names_of("if flag:\n    x = 1\nelse:\n    y = 2\nprint(x)")
    assert names.needs == {"flag"} and names.binds == {"x", "y"}
