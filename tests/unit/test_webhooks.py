"""Signatures of webhooks, compared with the reference package in both directions."""

import base64
import hmac
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from duetime import InvalidValue, webhooks
from duetime.clock import SECOND, SystemClock, to_instant
from duetime.webhooks import Received, WebhookRejected, new_secret, sign, verify

ID = "0197a1b2-0000-7000-8000-000000000001"
BODY = json.dumps({"order_id": 7, "name": "Zoë"}, ensure_ascii=False).encode()
SECRET, OTHER = new_secret(), new_secret()
SENT_AT = datetime(2027, 1, 15, 8, tzinfo=UTC)


def signed(secret: str | list[str] = SECRET, body: bytes = BODY, sent_at: datetime = SENT_AT) -> dict[str, str]:
    return sign(ID, body, secret, now=to_instant(sent_at))


def test_the_reference_accepts_what_we_sign_also_while_the_secret_is_replaced() -> None:
    now = SystemClock().now()
    assert Webhook(SECRET).verify(BODY, sign(ID, BODY, SECRET, now=now)) == json.loads(BODY)
    both = sign(ID, BODY, [OTHER, SECRET], now=now)
    assert both["webhook-signature"].count("v1,") == 2
    for secret in (SECRET, OTHER):
        assert Webhook(secret).verify(BODY, both) == json.loads(BODY)
    for changed in ({**both, "webhook-id": "x"}, {**both, "webhook-timestamp": str(now // SECOND - 1)}):
        with pytest.raises(WebhookVerificationError):
            Webhook(SECRET).verify(BODY, changed)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(BODY + b" ", both)


def test_we_accept_what_the_reference_signs() -> None:
    signature = Webhook(SECRET).sign(ID, SENT_AT, BODY.decode())
    headers = {"webhook-id": ID, "webhook-timestamp": str(int(SENT_AT.timestamp())), "webhook-signature": signature}
    assert verify(headers, BODY, SECRET, now=SENT_AT) == Received(ID, SENT_AT)
    assert signed() == headers


@pytest.mark.parametrize("shape", ["dict", "upper", "pairs", "bytes"])
def test_headers_come_as_frameworks_have_them(shape: str) -> None:
    headers = signed()
    shapes: dict[str, Any] = {
        "dict": headers,
        "upper": {name.title(): value for name, value in headers.items()},
        "pairs": [("host", "shop"), *headers.items()],
        "bytes": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    assert verify(shapes[shape], BODY, SECRET, now=SENT_AT).id == ID
    assert verify(shapes[shape], BODY.decode(), SECRET, now=SENT_AT).id == ID


def test_one_matching_secret_and_one_matching_signature_are_enough() -> None:
    assert verify(signed(SECRET), BODY, [OTHER, SECRET], now=SENT_AT).id == ID
    assert verify(signed([OTHER, SECRET]), BODY, SECRET, now=SENT_AT).id == ID
    headers = signed()
    headers["webhook-signature"] = f"v1a,AAAA v1,%%% v2,x {headers['webhook-signature']}"
    assert verify(headers, BODY, SECRET, now=SENT_AT).id == ID


@pytest.mark.parametrize("away", [-301, 301, -86_400, 10**9])
def test_an_old_or_future_request_is_rejected(away: int) -> None:
    with pytest.raises(WebhookRejected, match="too old" if away > 0 else "too far in the future"):
        verify(signed(), BODY, SECRET, now=SENT_AT + timedelta(seconds=away))


def test_the_tolerance_can_be_chosen() -> None:
    later = SENT_AT + timedelta(seconds=301)
    assert verify(signed(), BODY, SECRET, now=later, tolerance=302).id == ID
    assert verify(signed(), BODY, SECRET, now=SENT_AT + timedelta(seconds=300)).id == ID
    with pytest.raises(WebhookRejected):
        verify(signed(), BODY, SECRET, now=SENT_AT + timedelta(seconds=2), tolerance=timedelta(seconds=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"webhook-id": "other"}, "no signature matches"),
        ({"webhook-id": ""}, "webhook-id is missing"),
        ({"webhook-id": None}, "webhook-id is missing"),
        ({"webhook-id": f"{ID}.1"}, "no full stop"),
        ({"webhook-id": "a\nb"}, "printable"),
        ({"webhook-timestamp": None}, "webhook-timestamp is missing"),
        ({"webhook-timestamp": "1800000001"}, "no signature matches"),
        ({"webhook-timestamp": "1.8e9"}, "seconds since 1970"),
        ({"webhook-timestamp": "-1"}, "seconds since 1970"),
        ({"webhook-timestamp": "nan"}, "seconds since 1970"),
        ({"webhook-timestamp": "١٨٠٠٠٠٠٠٠٠"}, "seconds since 1970"),
        ({"webhook-timestamp": "9" * 11}, "too far in the future"),
        ({"webhook-signature": None}, "webhook-signature is missing"),
        ({"webhook-signature": "v1"}, "no signature matches"),
        ({"webhook-signature": "v1,"}, "no signature matches"),
        ({"webhook-signature": "v1,AAAA"}, "no signature matches"),
        ({"webhook-signature": "v1,???"}, "no signature of version v1"),
        ({"webhook-signature": "v1a,AAAA v2,AAAA"}, "no signature of version v1"),
    ],
)
def test_a_changed_request_is_rejected_with_the_reason(changes: dict[str, str | None], message: str) -> None:
    headers = {name: value for name, value in {**signed(), **changes}.items() if value is not None}
    with pytest.raises(WebhookRejected, match=message):
        verify(headers, BODY, SECRET, now=SENT_AT)


def test_another_body_or_secret_is_rejected() -> None:
    for body, secret in ((BODY + b" ", SECRET), (b"", SECRET), (BODY, OTHER)):
        with pytest.raises(WebhookRejected, match="no signature matches"):
            verify(signed(), body, secret, now=SENT_AT)
    with pytest.raises(WebhookRejected, match="webhook-id comes twice"):
        verify([*signed().items(), ("Webhook-Id", "other")], BODY, SECRET, now=SENT_AT)


def test_parts_cannot_be_read_as_others() -> None:
    """The signed text is id.timestamp.body: a body that begins with a timestamp must not become another request."""
    inner = str(int(SENT_AT.timestamp()) + 1)
    headers = signed(body=f"{inner}.paid".encode())
    moved = {**headers, "webhook-id": f"{ID}.{headers['webhook-timestamp']}", "webhook-timestamp": inner}
    with pytest.raises(WebhookRejected):
        verify(moved, b"paid", SECRET, now=SENT_AT)


def test_all_signatures_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    real = hmac.compare_digest

    def counted(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return real(one, other)

    monkeypatch.setattr("duetime.webhooks.hmac.compare_digest", counted)
    assert verify(signed([SECRET, OTHER]), BODY, [SECRET, OTHER], now=SENT_AT).id == ID
    assert len(compared) == 4


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_%%%", "hush-hush", "whsec_aHVzaA==", f"whsec_{'A' * 200}", [], [SECRET, ""], 7, [7], b"x"]
)
def test_a_malformed_secret_is_refused_and_not_shown(secret: Any) -> None:
    for call in (lambda: verify(signed(), BODY, secret, now=SENT_AT), lambda: sign(ID, BODY, secret, now=0)):
        with pytest.raises(InvalidValue, match="secret must") as refused:
            call()
        assert "hush" not in str(refused.value)
        assert "aHVzaA" not in str(refused.value)


def test_a_parsed_body_and_a_bad_id_are_refused() -> None:
    with pytest.raises(InvalidValue, match="the bytes of the request as they were received, got dict"):
        verify(signed(), {"order_id": 7}, SECRET)  # type: ignore[arg-type]
    for id in ("", "a.b", "a b", "ö", "x" * 256):
        with pytest.raises(InvalidValue, match="the id of a webhook"):
            sign(id, BODY, SECRET, now=0)


def test_secrets_are_random_and_long_enough() -> None:
    assert len({new_secret() for _ in range(100)}) == 100
    assert len(base64.b64decode(new_secret().removeprefix("whsec_"))) == 32


# ---- pairs of keys ----

# RFC 8032, 7.1, test 2
SEED = base64.b64encode(bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")).decode()
PUBLIC = base64.b64encode(bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")).decode()


def test_a_public_key_verifies_what_its_private_key_has_signed() -> None:
    pair, other = webhooks.new_key_pair(), webhooks.new_key_pair()
    headers = signed(pair.private)
    assert headers["webhook-signature"].startswith("v1a,")
    assert verify(headers, BODY, pair.public, now=SENT_AT) == Received(ID, SENT_AT)
    with pytest.raises(WebhookRejected, match="no signature matches"):
        verify(headers, BODY, other.public, now=SENT_AT)
    with pytest.raises(WebhookRejected, match=r"no signature of version v1$"):
        verify(headers, BODY, SECRET, now=SENT_AT)
    with pytest.raises(WebhookRejected, match="no signature matches"):
        verify(headers, BODY + b" ", pair.public, now=SENT_AT)
    with pytest.raises(WebhookRejected, match="no signature matches"):
        verify({**headers, "webhook-id": "another"}, BODY, pair.public, now=SENT_AT)


def test_a_sender_may_sign_for_receivers_of_both_kinds() -> None:
    pair = webhooks.new_key_pair()
    headers = signed([SECRET, pair.private])
    for key in (SECRET, pair.public, [OTHER, pair.public]):
        assert verify(headers, BODY, key, now=SENT_AT).id == ID


def test_a_signature_of_one_kind_does_not_pass_as_one_of_the_other() -> None:
    """A public key is no secret: nobody may use it as one to make a v1 signature that a receiver of v1a takes."""
    pair = webhooks.new_key_pair()
    forged = sign(ID, BODY, "whsec_" + pair.public.removeprefix("whpk_"), now=to_instant(SENT_AT))
    for header in (forged["webhook-signature"], forged["webhook-signature"].replace("v1,", "v1a,")):
        with pytest.raises(WebhookRejected):
            verify({**forged, "webhook-signature": header}, BODY, pair.public, now=SENT_AT)
    headers = signed(pair.private)
    relabelled = {**headers, "webhook-signature": headers["webhook-signature"].replace("v1a,", "v1,")}
    with pytest.raises(WebhookRejected, match="no signature matches"):
        verify(relabelled, BODY, [SECRET, pair.public], now=SENT_AT)


def test_keys_are_those_of_the_standard() -> None:
    with_public = "whsk_" + base64.b64encode(base64.b64decode(SEED) + base64.b64decode(PUBLIC)).decode()
    for private in (f"whsk_{SEED}", with_public):
        assert verify(signed(private), BODY, f"whpk_{PUBLIC}", now=SENT_AT).id == ID


@pytest.mark.parametrize("key", ["whpk_", "whsk_AAAA", "whpk_" + "A" * 88, "whsk_!"])
def test_what_is_no_key_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        signed(key)
    assert key[5:] not in str(refused.value) or not key[5:]


def test_a_public_key_cannot_sign() -> None:
    with pytest.raises(InvalidValue, match="cannot sign"):
        signed(webhooks.new_key_pair().public)
