# Strings: split, join, replace, case, search, slices, format, UTF-8.
def run(n):
    total = 0
    text = "the quick brown fox jumps over the lazy dog, naïve café Ünïcödé"
    for i in range(n):
        words = text.split()
        line = " ".join(reversed(words)).replace("fox", "cat%d" % (i % 97))
        total += line.find("quick") + len(line.upper().encode()) + len(f"{i:08x}:{line[i % 20:]:>80}")
        total += line.count("e") + line.startswith("dog")
    return total


print(run(60_000))
