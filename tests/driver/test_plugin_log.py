from __future__ import annotations

import json
import re

from astra_driver.plugin_log import line


def test_a_line_has_strings_in_its_three_keys_and_six_digits_in_its_time() -> None:
    document = json.loads(line("WARNING", 'a "quoted"\nmessage', "astra_driver.x", 1_700_000_000.0))
    assert (document["@level"], document["@message"]) == ("warn", 'a "quoted"\nmessage')
    assert re.fullmatch(r"2023-11-14T22:13:20\.000000\+00:00", document["@timestamp"])
