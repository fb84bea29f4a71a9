# Dictionaries with integer and string keys: insert, look up, delete, iterate.
def run(n):
    d = {}
    key = 1
    for i in range(n):
        key = (key * 69069 + 1) & 0xFFFFFFFF
        d[key & 0x3FFFF] = d.get(key & 0x3FFFF, 0) + i
        d["k%d" % (key & 0xFFF)] = i
        if i % 5 == 0:
            d.pop(key >> 8 & 0x3FFFF, None)
    return len(d), sum(d.values())


print(run(250_000))
