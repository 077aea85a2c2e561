"""What the commands that train say of the attentions' settings."""

from attenuator.tuning.adapt.settings import SETTINGS as ADAPT
from attenuator.tuning.choices import items, settings_class, starting
from attenuator.tuning.train.settings import SETTINGS as TRAIN


def test_help_says_what_holds_where_a_setting_is_not_given() -> None:
    for key, item in items():
        trained, adapted = (str(command.model_fields[item.name].description) for command in (TRAIN, ADAPT))
        otherwise = getattr(settings_class(key)(), item.name)
        assert trained.endswith(f"; by default what the checkpoint was trained with, else {otherwise}.")
        searched = "; by default what comes nearest to the teacher's attention."
        assert adapted.endswith((searched, f"; {getattr(starting(key), item.name)} by default."))
