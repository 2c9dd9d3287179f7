// SPDX-License-Identifier: MIT OR Apache-2.0
//! The chat benchmark: members of rooms that send messages to one another.
//!
//! Structure according to its description (Franke et al., "PMQS: Scalable Linux Scheduling for High
//! End Servers", ALS 2001; after VolanoMark): 20 members per room. Each member has four threads: a
//! pair (send, receive) at the client and a pair at the server. A message goes from the client's
//! sender to the server's receiver. The receiver passes it to the sender of every member of the
//! room, which sends it to that member's client.
//!
//! One parameter is not in the description: how far members run ahead. In the benchmark the socket
//! buffers limit it. Here a member sends at most a given number of messages before it has received
//! the others' messages.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};

use super::{OperationResult, Workload};

/// Messages that wait for one reader.
#[derive(Debug, Default)]
struct Mailbox {
    count: AtomicU32,
    reader_waits: AtomicBool,
}

impl Mailbox {
    /// Adds a message. Returns whether the reader waited for it.
    fn put(&self) -> bool {
        self.count.fetch_add(1, SeqCst);
        self.reader_waits.load(SeqCst) && self.reader_waits.swap(false, SeqCst)
    }

    /// Takes a message. If there is none, the reader waits and the result is false.
    fn take(&self) -> bool {
        if self.count.load(SeqCst) == 0 {
            self.reader_waits.store(true, SeqCst);
            // A writer may have checked the mark before it was set.
            if self.count.load(SeqCst) == 0 {
                return false;
            }
            self.reader_waits.store(false, SeqCst);
        }
        self.count.fetch_sub(1, SeqCst);
        true
    }
}

#[derive(Debug, Default)]
struct Member {
    /// From the client's sender to the server's receiver.
    said: Mailbox,
    /// From the room's receivers to the server's sender.
    queued: Mailbox,
    /// From the server's sender to the client's receiver.
    heard: Mailbox,
    /// Messages sent.
    sent: AtomicU64,
    /// Copies received.
    received: AtomicU64,
    /// Whether the client's sender waits for permission to send.
    silent: AtomicBool,
    /// Copies that the server's receiver still has to pass on.
    copies: AtomicU32,
}

/// Number of threads of a member.
const THREADS: usize = 4;

/// The chat.
#[derive(Debug)]
pub struct Chat {
    members_a_room: usize,
    ahead: u64,
    members: Vec<Member>,
    delivered: AtomicU64,
}

impl Chat {
    /// Creates rooms with this number of members, four tasks each. A member may be `ahead` messages
    /// (at least 1) ahead of those it has received.
    pub fn new(rooms: usize, members_a_room: usize, ahead: u64) -> Self {
        Self {
            members_a_room,
            ahead: ahead.max(1),
            members: (0..rooms * members_a_room)
                .map(|_| Member::default())
                .collect(),
            delivered: AtomicU64::new(0),
        }
    }

    /// Messages sent by all members.
    pub fn sent(&self) -> u64 {
        self.members.iter().map(|m| m.sent.load(SeqCst)).sum()
    }

    /// Copies in transit; a message that was not passed on yet counts for all its copies.
    pub fn on_their_way(&self) -> u64 {
        let of = |m: &Member| {
            let whole = u64::from(m.said.count.load(SeqCst)) * self.members_a_room as u64;
            let copies = [&m.copies, &m.queued.count, &m.heard.count];
            whole
                + copies
                    .map(|c| u64::from(c.load(SeqCst)))
                    .iter()
                    .sum::<u64>()
        };
        self.members.iter().map(of).sum()
    }

    fn may_speak(&self, member: &Member) -> bool {
        let rounds = member.received.load(SeqCst) / self.members_a_room as u64;
        member.sent.load(SeqCst) < rounds + self.ahead
    }

    fn speak(&self, member: &Member) -> Option<bool> {
        if !self.may_speak(member) {
            member.silent.store(true, SeqCst);
            if !self.may_speak(member) {
                return None;
            }
            member.silent.store(false, SeqCst);
        }
        member.sent.fetch_add(1, SeqCst);
        Some(member.said.put())
    }

    /// Takes a message or passes on one of its copies. Returns the recipient, if it waited.
    fn hand_out(&self, number: usize) -> Option<Option<usize>> {
        let member = &self.members[number];
        let left = member.copies.load(SeqCst);
        if left == 0 {
            let taken = member.said.take();
            return taken.then(|| {
                member.copies.store(self.members_a_room as u32, SeqCst);
                None
            });
        }
        member.copies.store(left - 1, SeqCst);
        let first = number - number % self.members_a_room;
        let to = first + left as usize - 1;
        Some(self.members[to].queued.put().then_some(to))
    }

    fn hear(&self, member: &Member) -> Option<bool> {
        if !member.heard.take() {
            return None;
        }
        member.received.fetch_add(1, SeqCst);
        self.delivered.fetch_add(1, SeqCst);
        let wakes = member.silent.load(SeqCst) && self.may_speak(member);
        Some(wakes && member.silent.swap(false, SeqCst))
    }
}

impl Workload for Chat {
    fn tasks(&self) -> usize {
        self.members.len() * THREADS
    }

    fn address_space(&self, task: usize) -> u32 {
        // The threads of all clients form one process, those of the server another.
        match task % THREADS {
            0 | 3 => 1,
            _ => 2,
        }
    }

    fn step(&self, task: usize, _now_ns: u64, woken: &mut Vec<usize>) -> OperationResult {
        let number = task / THREADS;
        let member = &self.members[number];
        // The woken task: a thread of this member, or the sender of another.
        let wakes = match task % THREADS {
            0 => self.speak(member).map(|w| w.then_some(task + 1)),
            1 => self
                .hand_out(number)
                .map(|to| to.map(|to| to * THREADS + 2)),
            2 => member
                .queued
                .take()
                .then(|| member.heard.put().then_some(task + 1)),
            _ => self.hear(member).map(|w| w.then_some(task - 3)),
        };
        match wakes {
            Some(wakes) => {
                woken.extend(wakes);
                OperationResult::Done
            }
            None => OperationResult::Waits,
        }
    }

    fn arrivals(&self, _now_ns: u64, _woken: &mut Vec<usize>) {}

    fn next_arrival_ns(&self) -> Option<u64> {
        None
    }

    fn completed(&self) -> u64 {
        self.delivered.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps all tasks that do not wait, in turn, and checks the number of copies.
    #[test]
    fn every_message_reaches_every_member_once() {
        let chat = Chat::new(3, 4, 10);
        let mut ready: Vec<usize> = (0..chat.tasks()).collect();
        let mut woken = vec![];
        for turn in 0..20_000 {
            assert!(!ready.is_empty(), "deadlock");
            let task = ready.remove(turn * 7 % ready.len());
            if chat.step(task, 0, &mut woken) == OperationResult::Done {
                ready.push(task);
            }
            for task in woken.drain(..) {
                assert!(!ready.contains(&task), "woke a task that does not wait");
                ready.push(task);
            }
            assert_eq!(chat.sent() * 4, chat.completed() + chat.on_their_way());
        }
        assert!(chat.completed() > 2_000);
        assert!(chat.members.iter().all(|m| m.received.load(SeqCst) > 0));
    }

    #[test]
    fn member_waits_for_messages_of_others() {
        let chat = Chat::new(1, 2, 10);
        let mut woken = vec![];
        for _ in 0..10 {
            assert_eq!(chat.step(0, 0, &mut woken), OperationResult::Done);
        }
        assert_eq!(chat.step(0, 0, &mut woken), OperationResult::Waits);
        assert!(woken.is_empty(), "the receiver has not waited yet");
    }
}
