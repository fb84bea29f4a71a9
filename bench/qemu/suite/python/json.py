# JSON: encode and decode a document of mixed types.
import json

doc = [
    {
        "id": i,
        "name": "item %d" % i,
        "price": i / 7,
        "tags": ["a", "b\n", "ü%d" % (i % 10)],
        "nested": {"x": [i, -i, i * i], "ok": i % 2 == 0, "none": None},
    }
    for i in range(1000)
]
text = ""
for _ in range(40):
    text = json.dumps(doc)
    doc = json.loads(text)
print(len(text), text[-100:])
