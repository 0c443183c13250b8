"""What the operator lets all tenants share, as token ids."""

from collections.abc import Sequence

from kokuban.core.errors import ConfigError, KokubanError
from kokuban.kvcache.contents import num_common
from kokuban.text.chat import ChatTemplate
from kokuban.text.tokenizer import Tokenizer


def public_token_ids(
    texts: Sequence[str], tokenizer: Tokenizer, template: ChatTemplate
) -> tuple[tuple[int, ...], ...]:
    """For each text the ids that it begins a raw prompt with, and a conversation as system message.

    A conversation's ids are those that do not depend on what the user says after it. A template
    that refuses system messages gives raw prompts only.

    Raises:
        ConfigError: a text is empty.
    """
    found = []
    for text in texts:
        if not text.strip():
            raise ConfigError("a public prefix is empty; give a file with the text to be shared")
        found.append(tuple(tokenizer.encode(text, add_bos=True, parse_special=True)))
        if chat := _conversation(text, template):
            found.append(chat)
    return tuple(found)


def _conversation(text: str, template: ChatTemplate) -> tuple[int, ...]:
    try:
        one, other = (
            template.encode_chat(
                [{"role": "system", "content": text}, {"role": "user", "content": said}]
            )
            for said in ("a", "1")
        )
    except KokubanError:
        return ()
    return tuple(one[: num_common(one, other)])
