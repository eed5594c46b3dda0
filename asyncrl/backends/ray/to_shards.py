"""A host's exchange with the shards, for algorithms whose workers learn."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

from asyncrl.backends.ray.exchange import SHORTEST_SECONDS, Exchange, Figures, Times
from asyncrl.backends.ray.member import Member
from asyncrl.parameters.pushing import Pushes, PushingStore
from asyncrl.parameters.shards import Exchanger, Pusher, slices
from asyncrl.parameters.shared import SharedStore
from asyncrl.runtime.link import NEVER, Answer, Link, Wire

LOOK_SECONDS = 0.0005
"""Interval between looks for gradients, if hosts push every update: workers wait for the answer."""


@dataclass
class Lane:
    """The exchange with one shard."""

    shard: int
    part: slice
    """Its part of theta."""
    exchanger: Exchanger
    since: float = -math.inf
    """When the newest call was made."""
    made: int = 0
    """Updates of this host at the newest call."""


class ToShards(Exchange):
    """The exchange with all shards."""

    silent = "no shard has"
    wait_seconds = SHORTEST_SECONDS

    def __init__(self, host: Member, wire: Wire, times: Times | None = None) -> None:
        """`times` are by another clock than this machine's if hosts are simulated."""
        times, beginning, store = times or Times(), host.beginning, host.handles.store
        assert isinstance(store, SharedStore)
        self._store, live = store, store.view().numpy()
        parts = slices(len(live), beginning.spec.config.parameter_shards)
        who = beginning.host, beginning.incarnation
        links = [Link[Any](wire, shard, *who, now=times.now, seconds=times.answer) for shard in range(len(parts))]
        super().__init__(host, links, links, times)
        self._pushes = Pushes(store, parts) if isinstance(store, PushingStore) else None
        """If hosts push every update."""
        self.look_seconds = SHORTEST_SECONDS / 2 if self._pushes is None else LOOK_SECONDS
        self._every = beginning.spec.config.exchange_updates * beginning.spec.config.workers
        """Updates of this host between two calls, if they send changes of theta."""
        side = Exchanger if self._pushes is None else Pusher
        self._lanes = {
            link: Lane(shard, part, side(link, live[part]))
            for shard, (link, part) in enumerate(zip(links, parts, strict=True))
        }

    def is_idle(self) -> bool:
        """Whether every gradient has been judged; a change of theta is whatever is there."""
        return self._pushes is None or self._pushes.idle

    def is_due(self, link: Link[Any], now: float) -> bool:
        """Whether there are updates enough, or a gradient, or the last exchange was long ago."""
        lane, times = self._lanes[link], self.times
        waited = now - lane.since
        if waited > times.longest or not link.joined:
            return True
        if self._pushes is not None:
            return len(self._pushes.waiting(lane.shard)) > 0
        return waited > times.shortest and self._store.counts(None).updates - lane.made >= self._every

    def call(self, link: Link[Any], now: float) -> None:
        """Send the change of theta, or all gradients that wait."""
        lane = self._lanes[link]
        lane.since, lane.made = now, self._store.counts(None).updates
        report = self.host.report() if lane.shard == 0 else None
        if isinstance(lane.exchanger, Pusher) and self._pushes is not None:
            lane.exchanger.push(self._pushes.gradients(lane.shard) if link.joined else None, report)
        else:
            theta, counts = self._store.counted_copy(lane.part)
            lane.exchanger.call(counts.updates, report, theta.numpy())

    def take(self, link: Link[Any], answer: Answer, took: float) -> None:
        """Take over theta, then answer the workers, so that their next pulls have their own updates."""
        lane, epoch = self._lanes[link], link.epoch
        with self._store.exclusive():  # else a worker's update and this one may overwrite each other
            exchanged = lane.exchanger.accept(answer)
        if exchanged is None:
            return
        news, judged, lost = answer.news, exchanged.judged, exchanged.lost
        if isinstance(self._store, PushingStore) and self._pushes is not None:
            self._store.see(lane.shard, news.updates)
            if len(judged.applied):
                self._pushes.tell(lane.shard, judged)
        self.figures.durations.append(took)
        self.figures.staleness += judged.staleness[judged.applied].tolist()
        self.figures.counts["lost"] += lost
        if lost or (epoch != answer.epoch and epoch != NEVER):
            back = f"shard {lane.shard} is back at version {news.version} in epoch {answer.epoch}"
            self.host.say(f"{back}; {lost:,} updates of this host were lost")
        if news.others is not None:
            self.host.learn_of_others(news.others)
        if not self.host.joined.is_set() and all(link.joined for link in self.links):
            self.host.joined.set()

    def row(self, figures: Figures) -> dict[str, Any] | None:
        """The columns of a row; None if there was no exchange."""
        if not figures.durations:
            return None
        row = {
            "exchanges": len(figures.durations),
            **figures.of_durations(f"exchange_{self.times.unit}"),
            "exchange_staleness_mean": statistics.fmean(figures.staleness) if figures.staleness else 0.0,
            "exchange_staleness_max": max(figures.staleness, default=0),
            "updates_lost": figures.counts["lost"],
        }
        if self._pushes is not None:
            row |= {"gradients": len(figures.staleness), "gradients_split": self._pushes.take_split()}
        return row
