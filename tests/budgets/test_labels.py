import json

from budgets.labels import Labels


def test_each_id_counts_once_and_seeing_is_not_labelling():
    labels = Labels()
    assert labels.see(["a", "b", "a"]) == 2
    assert labels.label(["b", "b"]) == 1
    assert labels.see(["b", "c"]) == 1
    assert labels.label(["a", "b", "c"]) == 2
    assert labels.label(["a"]) == 0


def test_state_survives_json_and_does_not_depend_on_order():
    a, b = Labels(), Labels()
    a.see(["x", "y", "z"])
    a.label(["y"])
    b.see(["z", "y", "x"])
    b.label(["y"])
    text = json.dumps(a.get_state())
    assert text == json.dumps(b.get_state())
    again = Labels()
    again.set_state(json.loads(text))
    assert again.see(["x", "w"]) == 1
    assert again.label(["x", "y"]) == 1
