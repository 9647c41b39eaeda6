"""The text that a model reads while its weights are rounded: of many kinds, so that much of what may come was seen.

It shares nothing with the text of `headrace model quality`, whose figures would flatter the model otherwise.
"""

CALIBRATION_TEXT = """\
The harbour of Lisbon lies on the north bank of the Tagus, about ten kilometres from the open sea. Ships have anchored
there since Phoenician times, and until the earthquake of 1755 most of the city's trade passed through a single square.
When it was rebuilt, the engineers set the new houses on wooden cages that could sway without breaking, one of the first
attempts anywhere to make a whole quarter safe against earthquakes.

User: My bread comes out flat every time. What am I doing wrong?
Assistant: There are three usual reasons. First, the yeast may be old: stir a teaspoon of it into warm water with a
little sugar, and if it does not foam within ten minutes, buy fresh yeast. Second, the dough may have risen too long, so
that it collapses in the oven. Third, the oven may be too cool; preheat it to 230 °C for at least half an hour. Would
you like a recipe that forgives mistakes?

import json
from collections import Counter

class Inventory:
    def __init__(self, path: str) -> None:
        self.path = path
        self.items: Counter[str] = Counter()

    def load(self) -> None:
        with open(self.path, encoding="utf-8") as stream:
            for line in stream:
                record = json.loads(line)
                if record.get("quantity", 0) > 0:
                    self.items[record["name"]] += record["quantity"]

    def most_common(self, limit: int = 10) -> list[tuple[str, int]]:
        return self.items.most_common(limit)

{"id": 4821, "customer": "Meyer & Sons", "total": 1299.50, "currency": "EUR", "paid": false, "lines": [{"sku": "A-17",
"count": 3}, {"sku": "B-02", "count": 1}]}

## Installing

1. Download the archive for your system and check its signature.
2. Unpack it with `tar -xzf package.tar.gz` and change into the new directory.
3. Run `make install` as an administrator; set PREFIX to install it elsewhere.

If the service does not start, look at `journalctl -u service` first. **Do not** delete the lock file by hand.

Let f be a continuous function on the closed interval [a, b]. Then f attains its maximum: suppose it did not, and let M
be the least upper bound of its values. The function 1 / (M - f(x)) would be continuous, hence bounded by some K, so
that f(x) <= M - 1/K for every x, which contradicts the choice of M. For example, if f(x) = x^2 - 4x + 7 on [0, 5], then
f'(x) = 2x - 4 = 0 at x = 2, and the values to compare are f(0) = 7, f(2) = 3 and f(5) = 12.

"You can't be serious," said Margaret, putting down her cup. "He left on Tuesday and nobody thought to tell me?"
"We thought you knew," her brother answered. He would not look at her. Outside, the rain had begun again, and somewhere
a dog was barking at nothing in particular. She waited until the silence became unpleasant, and then she laughed.

SELECT city, COUNT(*) AS orders, AVG(amount) AS mean_amount FROM orders WHERE created_at >= '2023-01-01' GROUP BY city
HAVING COUNT(*) > 100 ORDER BY mean_amount DESC LIMIT 20;

Photosynthesis takes place in two stages. In the light-dependent reactions, chlorophyll absorbs photons and water is
split into oxygen, protons and electrons; the energy is stored in ATP and NADPH. In the second stage, the Calvin cycle,
carbon dioxide is fixed by the enzyme RuBisCO and turned into sugar. Plants in hot, dry places have found ways around
its weaknesses: maize concentrates carbon dioxide in special cells, and cacti open their pores only at night.

Dear Dr. Okafor,
thank you for your letter of 3 May. We have read your proposal with great interest and would like to invite you to
present it to the committee on Thursday, 22 June, at 2:30 p.m. Travel costs of up to $450 can be refunded. Please let us
know by the end of the month whether you will be able to attend.

Der Zug nach München fährt heute von Gleis sieben ab. Le marché est ouvert tous les jours sauf le lundi. El perro duerme
debajo de la mesa mientras los niños juegan en el jardín. Москва является столицей России. 今天天气很好。

The match ended 3-1. Both teams had started carefully, but after the goalkeeper's mistake in the 38th minute the
visitors lost their order entirely. Their coach blamed the referee; the newspapers, the next morning, the coach.

Q: Which of the following is a renewable source of energy? (a) coal (b) natural gas (c) wind (d) uranium
A: (c) wind. Coal and gas are burnt faster than they form, and uranium is mined.

To reverse a linked list, keep three pointers: the node before, the current node and the one after it. At each step
save the next node, let the current one point back, and move on. It takes O(n) time and O(1) space, and the only thing
that is easily forgotten is to return the new head.
"""
