"""The text along which `headrace model quality` compares two models unless it is given another."""

SAMPLE_TEXT = """\
The river came down from the hills in spring, and for as long as anyone in the village could remember it had
turned the wheel of the mill. The miller was an old woman named Hanna, who had learned the work from her
father. Every morning she walked along the channel that brought the water to the wheel, clearing leaves and
branches from the iron bars. "Water is patient," she used to say, "but a wheel that stands still earns
nothing." In a dry year the channel was only a trickle, and she would open the gate for an hour at noon and
close it again. In a wet year she feared the flood, and stayed awake through the night, listening to the
stones that rolled along the bed of the stream.

One day an engineer arrived from the city with maps under his arm. He measured the fall of the water, counted
the turns of the wheel in a minute, and wrote the numbers in a small black book. "With a turbine," he
explained, "you could have light in every house, and power for a saw as well." Hanna asked how much it would
cost. He told her: about 12,400 crowns, paid over ten years. She laughed, because the mill had never earned
more than 900 crowns in its best year.

Still, the idea did not leave her. That winter she read everything about electricity that the schoolteacher
could lend her. She learned that a current flows because of a difference in voltage, just as water flows
because of a difference in height; that copper resists it a little and iron more; and that the energy lost as
heat grows with the square of the current. She drew plans at the kitchen table. By March she had written a
letter to the council, in which she proposed that the village build the station together and share what it
produced.

def share(total, houses):
    \"""Divide the power between the houses, and keep a reserve.\"""
    reserve = 0.15 * total
    return (total - reserve) / max(len(houses), 1)

The council met three times. Some were afraid that the noise would disturb the animals, and others that the
price of bread would rise if the mill stopped grinding. In the end they agreed to try it for two years. The
first lamp was lit on the evening of 4 November, in the school, and people came from the neighbouring valleys
to see it. Hanna stood at the back of the room. When someone asked her to make a speech, she shook her head
and said only that the bars had to be cleaned before the frost, and that she would need some help.
"""
