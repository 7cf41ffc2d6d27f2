"""`cotenant explain`."""

from __future__ import annotations

from cotenant.cli.common import JobId, Json, Socket, new_client, one_job
from cotenant.cli.output import emit_json, print_line


def command(job: JobId, *, json: Json = False, socket: Socket = None) -> None:
    """Why a job waits: the rule that every GPU failed, with its numbers.

    $ cotenant explain 17
    job 17 waits: 1 GPU with 13.1 GiB available, none of 2 qualifies
      GPU 0  insufficient_memory  needs 13.1 GiB, 9.8 GiB available
      GPU 1  smact_too_high  SMACT 0.91, limit 0.80
    """
    client = new_client(socket)
    told = client.explain(one_job(client, job))
    if json:
        emit_json(told)
        return
    reason = str(told["reason"])
    # The policy's own answers are bare needs; all other sentences already have their verb.
    print_line(f"job {job} waits: {reason}" if told["rejections"] else f"job {job}: {reason}")
    names = [str(each["gpu"]) if each["gpu"] is not None else each["gpu_uuid"] for each in told["rejections"]]
    rules = [each["rule"] for each in told["rejections"]]
    for name, each in zip(names, told["rejections"], strict=True):
        place, rule = name.ljust(max(map(len, names))), each["rule"].ljust(max(map(len, rules)))
        print_line(f"  GPU {place}  {rule}  {each['reason']}")
