"""Calls captured into CUDA graphs, which cost a launch far less than launching them one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuda.bindings import driver

from evo.fitness.cuda.driver import SUCCESS, Stream, call, failure
from evo.fitness.cuda.launch import DeviceCall
from evo.records import Status
from evo.target import Rejected


class Graph:
    """Calls captured in order. Raises `Rejected` when one of them cannot be captured."""

    def __init__(self, stream: Stream, calls: Sequence[DeviceCall]) -> None:
        self._stream = stream
        graph = capture(stream, calls)
        try:
            self._executable = call(driver.cuGraphInstantiate, graph, 0)
        finally:
            call(driver.cuGraphDestroy, graph)
        call(driver.cuGraphUpload, self._executable, stream.handle)
        self._launch = (self._executable, stream.handle)

    def launch(self) -> None:
        (result,) = driver.cuGraphLaunch(*self._launch)
        if result != SUCCESS:
            raise failure(result, "launching a graph")

    def close(self) -> None:
        call(driver.cuGraphExecDestroy, self._executable)


def capture(stream: Stream, calls: Sequence[DeviceCall]) -> Any:
    """A graph of the calls, in order. Relaxed mode: a library's caching allocator may allocate meanwhile."""
    call(driver.cuStreamBeginCapture, stream.handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    try:
        for each in calls:
            each.enqueue()
    except BaseException:
        result, graph = driver.cuStreamEndCapture(stream.handle)  # ends it, whatever became of it
        if result == SUCCESS and int(graph):
            call(driver.cuGraphDestroy, graph)
        raise
    graph = call(driver.cuStreamEndCapture, stream.handle)
    _, nodes = call(driver.cuGraphGetNodes, graph, 0)
    if nodes < len(calls):
        call(driver.cuGraphDestroy, graph)
        raise Rejected(Status.LAUNCH_ERROR, f"{len(calls)} calls put {nodes} operations on the given stream")
    return graph
