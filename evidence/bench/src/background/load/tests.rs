// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that load generators do exactly the work that they count, keep their duty cycles, and end
//! on request.

use std::net::TcpListener;
use std::sync::atomic::AtomicBool;

use super::cpu::{CpuArgs, compute};
use super::duty_cycle::{DutyAction, DutyCycle, drive};
use super::limits::LoadLimits;
use super::make_file;
use super::net::{NetArgs, UNIT_BYTES, send, serve};
use super::records::{ActivePhase, WorkRecorder, read_bins, read_counter, read_phases};

fn limits(dir: &std::path::Path, work: u64) -> LoadLimits {
    LoadLimits {
        work: Some(work),
        seconds: None,
        usage: 100.0,
        burst: None,
        period_ms: 100.0,
        counter: Some(dir.join("counter")),
        bins: Some(dir.join("bins")),
        epoch_ns: super::monotonic_ns(),
        phases: Some(dir.join("phases")),
    }
}

#[test]
fn a_duty_cycle_is_on_for_its_share_of_each_period() {
    let mut duty = DutyCycle::new(12.5, 8.0, None);
    for period in [0, 7] {
        let start = period * 8_000_000;
        assert_eq!(duty.at(start, 0), DutyAction::On);
        assert_eq!(duty.at(start + 999_999, 9), DutyAction::On);
        assert_eq!(duty.at(start + 1_000_000, 9), DutyAction::Off(7_000_000));
    }
    assert_eq!(
        DutyCycle::new(100.0, 8.0, None).at(7_999_999, 9),
        DutyAction::On
    );
}

#[test]
fn a_counted_duty_cycle_rests_as_long_however_long_its_work_took() {
    let mut duty = DutyCycle::new(25.0, 8.0, Some(10));
    for (start, done) in [(0, 0), (70_000_000, 10), (200_000_000, 20)] {
        assert_eq!(duty.at(start, done), DutyAction::On);
        assert_eq!(duty.at(start + 50_000_000, done + 9), DutyAction::On);
        let over = start + 60_000_000;
        assert_eq!(duty.at(over, done + 10), DutyAction::Off(6_000_000));
        assert_eq!(
            duty.at(over + 4_000_000, done + 10),
            DutyAction::Off(2_000_000)
        );
        assert_eq!(duty.at(over + 6_000_000, done + 10), DutyAction::On);
    }
}

#[test]
fn work_is_counted_in_the_millisecond_in_which_it_began() {
    let dir = tempfile::tempdir().unwrap();
    let mut meter = WorkRecorder::new(&LoadLimits {
        epoch_ns: 1_000,
        ..limits(dir.path(), 1)
    })
    .unwrap();
    for (at_ns, units) in [(1_000, 1), (900_000, 2), (3_001_000, 5)] {
        meter.on(at_ns).unwrap();
        meter.add(at_ns, units).unwrap();
    }
    meter.off(4_000_000).unwrap();
    assert_eq!(read_bins(&dir.path().join("bins")).unwrap(), [3, 0, 0, 5]);
    assert_eq!(read_counter(&dir.path().join("counter")), 8);
    let phase = ActivePhase {
        start_ns: 1_000,
        end_ns: 4_000_000,
    };
    assert_eq!(read_phases(&dir.path().join("phases")).unwrap(), [phase]);
}

#[test]
fn a_fixed_amount_of_work_is_done_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let args = CpuArgs {
        limits: limits(dir.path(), 101),
        threads: 2,
    };
    let summary = compute(&args, &AtomicBool::new(false)).unwrap();
    assert_eq!(summary.work, 101);
    let counted = ["counter", "counter.1"].map(|name| read_counter(&dir.path().join(name)));
    assert_eq!(counted, [51, 50]);
    let bins: u32 = read_bins(&dir.path().join("bins")).unwrap().iter().sum();
    assert_eq!(bins, 51);
}

#[test]
fn a_request_to_end_is_followed_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let summary = drive(&limits(dir.path(), 5), &AtomicBool::new(true), || {
        Ok(Some(1))
    });
    assert_eq!(summary.unwrap().work, 0);
}

#[test]
fn a_file_is_read_block_by_block() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    make_file(&file, 1).unwrap();
    let args = super::disk::DiskArgs {
        limits: limits(dir.path(), 300),
        file,
        direct: false,
    };
    super::disk::run(&args).unwrap();
    assert_eq!(read_counter(&dir.path().join("counter")), 300);
}

#[test]
fn sent_data_arrives_complete() {
    for burst in [None, Some(4), Some(7)] {
        let dir = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let args = NetArgs {
            limits: LoadLimits {
                counter: None,
                burst,
                ..limits(dir.path(), 20)
            },
            to: listener.local_addr().unwrap(),
            name: "bg-1".to_owned(),
        };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&listener, dir.path(), 0, &stop).unwrap());
            assert_eq!(send(&args, &AtomicBool::new(false)).unwrap().work, 20);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let arrived = read_counter(&dir.path().join("bg-1.counter"));
        assert_eq!(arrived, 20 * UNIT_BYTES as u64);
    }
}
