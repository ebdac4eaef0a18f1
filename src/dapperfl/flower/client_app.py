"""The ClientApp: each message is answered by itself, and nothing private goes into an answer."""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dapperfl.core.messages import ClientUpdate
from dapperfl.errors import MessageError
from dapperfl.flower.device import Settings, holding_of, reason_of, work_on
from dapperfl.flower.kit import NET_LIMIT, Kit, build_kit
from dapperfl.flower.letters import letter, opened, part, refusal, refused
from dapperfl.flower.remembered import Remembered
from dapperfl.flower.roster import DEVICE, TERMS
from dapperfl.flower.runner import MODEL, REPLY, TASK
from dapperfl.flower.terms import LIMIT, read_terms
from dapperfl.runtime.facts import as_text
from dapperfl.runtime.guard import GuardSettings, check_stamp, check_task
from dapperfl.runtime.packing import HEADER_LIMIT
from dapperfl.runtime.wire import SHARED_LIMIT, Parcel, Stamp, kind_of

LIMITS = {TERMS: LIMIT, MODEL: NET_LIMIT, TASK: SHARED_LIMIT + 3 * HEADER_LIMIT}
Notes = dict[str, object]  # what the owner of the device is told of a message
Work = Callable[[RecordDict, Settings, Notes], RecordDict]
logger = logging.getLogger(__name__)
app = ClientApp()


@app.query()
def hello(message: Message, context: Context) -> Message:
    """Say which device this is."""
    return _answered(message, context, "hello", _introduce)


@app.query("refused")
def not_wanted(message: Message, context: Context) -> Message:
    """Hear why the server does not ask this device."""
    return _answered(message, context, "refused", _hear)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model that came, and measure it before."""
    return _answered(message, context, "train", _work)


@app.train("statistics")
def statistics(message: Message, context: Context) -> Message:
    """Measure batch-norm moments of the model that came."""
    return _answered(message, context, "statistics", _work)


def _answered(message: Message, context: Context, phase: str, work: Work) -> Message:
    """Do some work and answer; whatever goes wrong becomes a reason that says nothing private."""
    began, notes = time.perf_counter(), Notes(phase=phase)
    try:
        settings = Settings.read(context.node_config)
    except Exception as error:
        logger.error("the settings of this device cannot be used", exc_info=error)
        return Message(refusal(reason_of(error)), reply_to=message)
    try:
        content = work(message.content, settings, notes)
    except Exception as error:
        # The border of the process: the server hears a reason, the owner of the device all of it.
        logger.error("a message cannot be answered", exc_info=error)
        notes["error"] = as_text(f"{error}" or type(error).__name__)
        content = refusal(reason_of(error))
    notes["seconds"] = round(time.perf_counter() - began, 3)
    _note(settings.state, notes)
    return Message(content, reply_to=message)


def _introduce(content: RecordDict, settings: Settings, notes: Notes) -> RecordDict:
    kit = _kit(opened(content, {TERMS: LIMIT})[TERMS], settings)
    notes["run"] = kit.terms.run
    device = holding_of(settings, kit).device
    return letter({DEVICE: part(kit.codec.encode_device(device))})


def _hear(content: RecordDict, settings: Settings, notes: Notes) -> RecordDict:
    reason = refused(content)
    if reason is None:
        raise MessageError("the server refuses this device and does not say why")
    notes["error"] = reason
    return letter({})


def _work(content: RecordDict, settings: Settings, notes: Notes) -> RecordDict:
    parts = opened(content, LIMITS)
    kit = _kit(parts[TERMS], settings)
    received = kit.codec.decode_task(Parcel(parts[TASK], parts[MODEL]))
    task, stamp = received.message, received.stamp
    notes |= {"phase": kind_of(task), "round": task.round_num}
    check_stamp(stamp, Stamp(kit.terms.run, task.round_num))
    holding = holding_of(settings, kit)
    remembered = Remembered(settings.state / kit.terms.run)
    # Its own idea of what is reasonable: the server's is the server's.
    check_task(task, holding.device, remembered.earliest, GuardSettings())
    reply = work_on(task, kit, holding, remembered)
    data = kit.codec.encode_reply(reply, stamp)
    notes["sent"] = len(data)
    if isinstance(reply, ClientUpdate):
        known = {"tested": 0, "correct": 0} | dict(reply.metrics)
        notes |= {name: known[name] for name in ("loss", "tested", "correct")}
    return letter({REPLY: part(data)})


def _kit(terms: bytes, settings: Settings) -> Kit:
    return build_kit(read_terms(terms), settings.modules)


def _note(state: Path, notes: Notes) -> None:
    """Tell the owner of the device, in a file that `dapperfl join` reads."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        with (state / "worked.jsonl").open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(notes)}\n")
    except OSError as error:  # not the server's trouble, and its text not for the server
        logger.error("the notes cannot be written", exc_info=error)
