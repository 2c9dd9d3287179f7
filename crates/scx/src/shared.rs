// SPDX-License-Identifier: GPL-2.0-only
//! Reads the layout of the maps' values in the compiled programs from their BTF, for tests. The
//! tests compare the module `layout` with this layout field by field, by name, so that swapped
//! fields are detected.

use std::collections::BTreeMap;
use std::ops::Range;

use libbpf_rs::btf::types::{Enum, MemberAttr, Struct};
use libbpf_rs::btf::{Btf, HasSize};
use serde_json::{Value, json};

use crate::layout::{
    CPU_TALLY_BYTES, Ending, PARKED, PLACEMENTS, QUEUES, QUEUES_PER_LLC, Queue, SeatTally,
    Settings, Tally, ThreadState, URGENT, WHYS,
};
use crate::machine::Tables;
use crate::tables::TableSize;

/// Layout of a C structure: the name and byte range of each field in order, and the size.
pub(crate) struct Fields {
    all: Vec<(String, Range<usize>)>,
    bytes: usize,
}

/// Reads the layout of a structure of the scheduler's programs.
pub(crate) fn fields(of: &str) -> Fields {
    fields_of(TableSize::Large, of)
}

/// Reads the layout of a structure of the scheduler's programs with tables of this size.
pub(crate) fn fields_of(size: TableSize, of: &str) -> Fields {
    read(size.scheduler(), of)
}

/// Reads the layout of a structure of the counter's programs.
pub(crate) fn counters_fields(of: &str) -> Fields {
    read(TableSize::Large.counter(), of)
}

fn read(object: &[u8], of: &str) -> Fields {
    let btf = Btf::from_raw("usher", object).unwrap().unwrap();
    let found = btf.type_by_name::<Struct<'_>>(of).unwrap();
    let begins = found.iter().map(|field| {
        let MemberAttr::Normal { offset } = field.attr else {
            panic!("struct {of} has bit fields, which are not supported");
        };
        let name = field.name.unwrap().to_str().unwrap();
        (name.to_owned(), offset as usize / 8)
    });
    let begins: Vec<(String, usize)> = begins.collect();
    let ends = begins.iter().skip(1).map(|(_, at)| *at);
    let ends: Vec<usize> = ends.chain([found.size()]).collect();
    let all = begins.into_iter().zip(ends);
    Fields {
        all: all.map(|((name, at), end)| (name, at..end)).collect(),
        bytes: found.size(),
    }
}

impl Fields {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn names(&self) -> Vec<&str> {
        self.all.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Returns the byte range of a field.
    pub fn place(&self, name: &str) -> Range<usize> {
        let (_, place) = self.all.iter().find(|(known, _)| known == name).unwrap();
        place.clone()
    }

    /// Returns a value in which each field has the number that `number` returns for its name. In an
    /// array field, only the first element is set.
    pub fn filled(&self, number: impl Fn(&str) -> u64) -> Vec<u8> {
        let mut value = vec![0; self.bytes];
        for (name, place) in &self.all {
            let number = number(name).to_ne_bytes();
            let most = place.len().min(8);
            value[place.clone()][..most].copy_from_slice(&number[..most]);
        }
        value
    }

    /// Returns a value in which the fields are numbered from 1.
    pub fn numbered(&self) -> (Vec<u8>, BTreeMap<String, u64>) {
        let names = self.all.iter().map(|(name, _)| name.clone());
        let numbers: BTreeMap<String, u64> = names.zip(1..).collect();
        (self.filled(|name| numbers[name]), numbers)
    }
}

#[test]
fn tally_fields_match_by_name() {
    let fields = fields("tally");
    let (value, numbers) = fields.numbered();
    let mut tally = Tally::default();
    tally.add(&value);
    assert_eq!(serde_json::to_value(tally).unwrap(), json!(numbers));
    assert_eq!(fields.bytes(), Tally::BYTES);
    assert_eq!(self::fields("cpu_tally").bytes(), CPU_TALLY_BYTES);
}

#[test]
fn seat_tally_fields_match_by_name() {
    let fields = fields("seat_tally");
    let (value, numbers) = fields.numbered();
    let mut tally = SeatTally::default();
    tally.add(&value);
    let mut json_tally = serde_json::to_value(&tally).unwrap();
    let counts = json_tally["return_latency"].take();
    assert_eq!(counts, json!([numbers["return_latency"]]));
    json_tally["return_latency"] = counts[0].clone();
    assert_eq!(json_tally, json!(numbers));
    assert_eq!(fields.bytes(), SeatTally::BYTES);
}

#[test]
fn settings_fields_match_by_name() {
    let (changeable, variant) = (fields("settings"), fields("variant"));
    let tables = Tables {
        size: TableSize::Large,
        places: Vec::new(),
        llcs: 0,
        cores: 0,
        has_threads: false,
        classes: 3,
        isolates: true,
        nodes: 0,
        cpu_words: 10,
    };
    for flag in ["smt", "aggregate", "fifo"] {
        let of = |name: &str| u64::from(name == flag);
        let settings = Settings {
            slice_ns: 5,
            turn_ns: 6,
            max_lag_ns: 7,
            smt: of("smt") == 1,
            aggregate: of("aggregate") == 1,
            fifo: of("fifo") == 1,
            seats: false,
        };
        let number = |name: &str| match name {
            "slice_ns" => 5,
            "turn_ns" => 6,
            "max_lag_ns" => 7,
            "llcs" => 8,
            "nodes" => 9,
            "cpu_words" => 10,
            "classes" => 3,
            "isolates" => 1 - of("fifo"),
            name => of(name),
        };
        assert_eq!(settings.bytes(8), changeable.filled(number), "{flag}");
        assert_eq!(
            settings.variant(&tables, 9),
            variant.filled(number),
            "{flag}"
        );
    }
}

/// Returns a thread with the number `others` in all fields, except the fields in `but`, which have
/// their own numbers.
fn thread(others: u64, but: &[(&str, u64)]) -> ThreadState {
    let value = fields("thread").filled(|name| {
        let named = but.iter().find(|(but, _)| *but == name);
        named.map_or(others, |(_, number)| *number)
    });
    ThreadState::read(&value)
}

#[test]
fn thread_fields_match_by_name() {
    assert_eq!(fields("thread").bytes(), ThreadState::BYTES);
    // Each field must be read independently of the other fields.
    for others in [0, 1, 9] {
        let with = |name, number| thread(others, &[(name, number)]);
        assert_eq!(with("cpu", 300).cpu, 300);
        assert_eq!(with("burst_average_ns", 1 << 40).burst_average_ns, 1 << 40);
        assert_eq!(with("lag_ns", (-7_i64) as u64).lag_ns, -7);
        assert_eq!(with("group_weight", 1 << 15).group_weight, 50);
        assert_eq!(with("group_weight", 0).group_weight, 100);
        assert!(with("urgent", 1).urgent && !with("urgent", 0).urgent);
        for (number, why) in (0..).zip(WHYS) {
            assert_eq!(with("why", number).why, why);
        }
        for (number, placed) in (0..).zip(PLACEMENTS) {
            assert_eq!(with("placed", number).placed, placed);
        }
        assert_eq!(with("placed_llc", 63).placed_llc, 63);
        assert_eq!(with("capacity", 600).capacity, Some(600));
        assert_eq!(with("capacity", 0).capacity, None);
        let seat = |cgroup, seat| {
            let thread = thread(others, &[("cgroup", cgroup), ("seat", seat)]);
            (thread.seat, thread.kept_from_seat)
        };
        assert_eq!(seat(0, 0), (None, false));
        assert_eq!(seat(70, 70), (Some(70), false));
        assert_eq!(seat(70, 0), (Some(70), true));
        let queue = u64::from(QUEUES + 3 * QUEUES_PER_LLC);
        let waits = |queue| with("queue", queue).waits;
        assert_eq!(waits(0), None);
        let space = Queue::AddressSpace { llc: 3, queue: 2 };
        assert_eq!(waits(queue + 2), Some(space));
        let urgent = Queue::Urgent { llc: 3 };
        assert_eq!(waits(queue + u64::from(URGENT)), Some(urgent));
        let parked = [("queue", u64::from(PARKED)), ("throttled_by", 1 << 40)];
        let throttled = Queue::Throttled { cgroup: 1 << 40 };
        assert_eq!(thread(others, &parked).waits, Some(throttled));
    }
}

/// Returns the values and names of an enumeration of the scheduler's programs.
fn values_of(of: &str) -> Vec<(i64, String)> {
    let btf = Btf::from_raw("usher", TableSize::Large.scheduler())
        .unwrap()
        .unwrap();
    let values = btf.type_by_name::<Enum<'_>>(of).unwrap();
    let values = values.iter().map(|value| {
        (
            value.value,
            value.name.unwrap().to_str().unwrap().to_owned(),
        )
    });
    values.collect()
}

/// Returns the numbers and C names of reasons.
fn names<T: serde::Serialize>(prefix: &str, reasons: &[T]) -> Vec<(i64, String)> {
    let named = (0..).zip(reasons).map(|(number, reason)| {
        let Value::String(name) = serde_json::to_value(reason).unwrap() else {
            panic!("reason {number} has no name");
        };
        let name = format!("{prefix}_{}", name.to_uppercase().replace('-', "_"));
        (number, name)
    });
    named.collect()
}

#[test]
fn reasons_match_the_enum() {
    assert_eq!(values_of("why"), names("WHY", &WHYS));
    assert_eq!(values_of("placement"), names("PLACED", &PLACEMENTS));
}

/// Compares with the text of the header, because BTF contains no macros.
#[test]
fn queue_numbers_match_the_macros() {
    let state = include_str!("bpf/state.h");
    let is = |name: &str, value: &str| {
        let defined = format!("#define {name} {value}");
        assert!(state.lines().any(|line| line == defined), "{defined}");
    };
    is("QUEUES", &format!("{QUEUES:#x}"));
    is("PARKED", &PARKED.to_string());
    is("QUEUES_PER_LLC", &QUEUES_PER_LLC.to_string());
    // usher-rules compares MM_QUEUES_PER_LLC with its header.
    is("URGENT", "MM_QUEUES_PER_LLC");
}

#[test]
fn ending_fields_match_by_name() {
    let fields = fields("ending");
    assert_eq!(fields.bytes(), Ending::BYTES);
    let letter = |letter: char| u64::from(u32::from(letter));
    let value = fields.filled(|name| match name {
        "kind" => 64,
        "code" => 1 << 48,
        "reason" => letter('r'),
        "message" => letter('m'),
        other => panic!("the declaration {other} is not supported"),
    });
    let ending = Ending::read(&value, b"dump");
    assert_eq!((ending.kind, ending.code), (64, 1 << 48));
    let words = (ending.reason.as_str(), ending.message.as_str());
    assert_eq!(words, ("r", "m"));
    // The fields do not overlap.
    let mut long = vec![b'm'; fields.bytes()];
    long[fields.place("reason")].fill(b'r');
    let ending = Ending::read(&long, b"dump");
    assert_eq!(ending.reason.len(), fields.place("reason").len());
    assert_eq!(ending.reason, "r".repeat(ending.reason.len()));
    assert_eq!(ending.message.len(), fields.place("message").len());
    assert_eq!(ending.message, "m".repeat(ending.message.len()));
}

#[test]
fn structures_of_one_cpu_or_llc_fill_cache_lines() {
    for name in [
        "cpu_state",
        "llc_rq",
        "llc_load",
        "idle_scan_ctx",
        "cpu_tally",
    ] {
        for size in TableSize::ALL {
            assert_eq!(fields_of(size, name).bytes() % 64, 0, "{name}");
        }
    }
}
