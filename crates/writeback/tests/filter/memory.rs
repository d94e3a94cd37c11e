//! The memory of a cache: taken ahead of writes, given back, and given up when the limit is
//! lowered.
//!
//! Left out: which answers are right (`main`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::Mutex;
use shoal_media::{Request, WriteCache};
use shoal_sim::{Random, SimMemory};
use shoal_writeback::{Cache, Lifetime, Owner, Policy, Rule, S_NS, WriteBack};

use crate::{BLOCK, BLOCKS, PATIENCE, Scarce, Slow, Taking, Time, ask, cache, cache_on, contents, numbers, write};

#[test]
fn nobody_waits_while_the_host_takes_memory_back() {
    let (disk, time, taking) = (Slow::new(), Arc::new(Time::default()), Arc::new(Taking::default()));
    let memory = cache_on(4, 1, 0, taking.clone());
    let filter = WriteBack::new(Arc::new(disk.clone()), time.clone(), Rule::of(Policy::aipu(30 * S_NS)), memory);
    ask(&filter, Request::Write { at: 0, buffer: contents(&[7; 300]), fua: false });
    ask(&filter, Request::Flush);
    while disk.step(&mut Random::new(1)) {}
    time.0.store(2 * S_NS, Ordering::Relaxed);
    filter.tick();
    taking.is_slow.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        time.0.store(4 * S_NS, Ordering::Relaxed);
        scope.spawn(|| filter.tick());
        wait_for(&taking);
        let begun = Instant::now();
        assert!(write(&filter, 3, 8).lock().is_some());
        let read = ask(&filter, Request::Read { at: 3 * BLOCK, buffer: vec![0; BLOCK as usize] });
        assert_eq!(numbers(read.lock().as_ref().unwrap().as_ref().unwrap()), [8]);
        assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
        taking.let_go.store(true, Ordering::SeqCst);
    });
}

/// Waits until the host is asked.
fn wait_for(taking: &Taking) {
    let begun = Instant::now();
    while !taking.begun.load(Ordering::SeqCst) {
        assert!(begun.elapsed() < PATIENCE, "the host is not asked");
        std::thread::yield_now();
    }
}

#[test]
fn memory_is_taken_ahead_without_the_lock() {
    let (disk, time, taking) = (Slow::new(), Arc::new(Time::default()), Arc::new(Taking::default()));
    let memory = cache_on(8, 1, 0, taking.clone());
    let filter = WriteBack::new(Arc::new(disk.clone()), time.clone(), Rule::of(Policy::aipu(30 * S_NS)), memory);
    let fill = |number| ask(&filter, Request::Write { at: 0, buffer: contents(&[number; 100]), fua: false });
    let read = || ask(&filter, Request::Read { at: 319 * BLOCK, buffer: vec![0; BLOCK as usize] });
    let slowly = |slow: &(dyn Fn() + Sync), beside: &dyn Fn()| {
        taking.begun.store(false, Ordering::SeqCst);
        taking.let_go.store(false, Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(slow);
            wait_for(&taking);
            let begun = Instant::now();
            beside();
            assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
            taking.let_go.store(true, Ordering::SeqCst);
        });
    };
    assert!(fill(1).lock().is_some());
    taking.is_slow.store(true, Ordering::SeqCst);
    taking.gives_slowly.store(true, Ordering::SeqCst);
    // After a hundred blocks at a time, a tick has taken memory for the next two hundred.
    assert!(fill(2).lock().is_some());
    slowly(&|| _ = filter.tick(), &|| {
        assert!(write(&filter, 300, 8).lock().is_some());
        drop(read());
    });
    taking.begun.store(false, Ordering::SeqCst);
    (3..5).for_each(|number| assert!(fill(number).lock().is_some()));
    assert!(!taking.begun.load(Ordering::SeqCst), "a write took memory itself");
    while disk.step(&mut Random::new(1)) {}
    assert_eq!(filter.report().reads, 1, "the read went to the device");
}

#[test]
fn memory_goes_back_a_piece_at_a_tick_and_what_is_wanted_meanwhile_stays() {
    let (disk, time, taking) = (Slow::new(), Arc::new(Time::default()), Arc::new(Taking::default()));
    let memory = cache_on(4, 1, 0, taking.clone());
    let filter = WriteBack::new(Arc::new(disk.clone()), time.clone(), Rule::of(Policy::aipu(30 * S_NS)), memory);
    let fill = || {
        for first in (0..BLOCKS).step_by(160) {
            ask(&filter, Request::Write { at: first * BLOCK, buffer: contents(&[7; 160]), fua: false });
        }
    };
    let settle = |second: u64| {
        ask(&filter, Request::Flush);
        while disk.step(&mut Random::new(1)) {}
        time.0.store(second * S_NS, Ordering::Relaxed);
        filter.tick();
        time.0.store((second + 2) * S_NS, Ordering::Relaxed);
    };
    fill();
    settle(2);
    let before = taking.taken.lock().len();
    let mut ticks = 1;
    while filter.tick() {
        ticks += 1;
        assert!(ticks < 1000, "it never ends");
    }
    let taken = taking.taken.lock()[before..].to_vec();
    assert!(taken.len() == ticks && taken.iter().all(|&len| (1..=64 << 10).contains(&len)), "{taken:?}");
    let groups = taken.iter().sum::<u64>() / (1 << 20);
    assert_eq!(groups, 3, "two that were used, and one that was to be: {taken:?}");
    // A third of a group is given back when everything is needed again.
    fill();
    settle(6);
    (0..5).for_each(|_| assert!(filter.tick()));
    fill();
    fill();
    assert_eq!(filter.held_bytes(), BLOCKS * BLOCK);
    for block in [0, BLOCKS - 1] {
        let read = ask(&filter, Request::Read { at: block * BLOCK, buffer: vec![0; BLOCK as usize] });
        assert_eq!(numbers(read.lock().as_ref().unwrap().as_ref().unwrap()), [7]);
    }
}

#[test]
fn memory_that_may_not_be_kept_goes_back_once_what_is_held_there_has_left() {
    let (disk, time, taking) = (Slow::new(), Arc::new(Time::default()), Arc::new(Taking::default()));
    let memory = cache_on(4, 1, 0, taking.clone());
    let filter = WriteBack::new(Arc::new(disk.clone()), time.clone(), Rule::of(Policy::aipu(30 * S_NS)), memory);
    filter.set_bell(Arc::new(|| ()));
    for first in (0..BLOCKS).step_by(80) {
        assert!(
            ask(&filter, Request::Write { at: first * BLOCK, buffer: contents(&[7; 80]), fua: false }).lock().is_some()
        );
    }
    let group = filter.memory_bytes_max() / 4;
    assert_eq!((filter.memory_bytes() / group, filter.held_bytes()), (2, BLOCKS * BLOCK));
    // A limit of more than three groups is no reason to give anything back, nor to take it.
    filter.set_memory(3 * group + group / 2);
    assert!(!filter.has_excess());
    filter.set_memory(group);
    assert!(filter.has_excess());
    // New blocks are meanwhile held in the memory that stays.
    let mut later = 0;
    for _ in 0..10_000 {
        filter.tick();
        disk.step(&mut Random::new(1));
        if filter.has_excess() && later < 40 {
            drop(write(&filter, 3, 100 + later));
            later += 1;
        }
        if !filter.has_excess() {
            break;
        }
    }
    assert_eq!(filter.memory_bytes(), group);
    let given: u64 = taking.taken.lock().iter().sum();
    assert!(given >= group && filter.held_bytes() <= 256 * BLOCK, "{given} bytes went back");
    let read = ask(&filter, Request::Read { at: 3 * BLOCK, buffer: vec![0; BLOCK as usize] });
    while disk.step(&mut Random::new(1)) {}
    assert_eq!(numbers(read.lock().as_ref().unwrap().as_ref().unwrap()), [100 + later - 1]);
    // Without any memory, a write completes when the device has it.
    filter.set_memory(0);
    let last = write(&filter, 200, 9);
    assert!(last.lock().is_none());
    for _ in 0..1000 {
        filter.tick();
        disk.step(&mut Random::new(1));
    }
    assert!(last.lock().is_some() && disk.0.lock().now[200] == 9);
    assert_eq!((filter.memory_bytes(), filter.held_bytes()), (0, 0));
    // Memory is taken again when the limit allows it.
    filter.set_memory(u64::MAX);
    assert!(write(&filter, 201, 9).lock().is_some() && filter.held_bytes() == BLOCK);
}

#[test]
fn memory_is_given_back_though_little_is_held_in_each_part_of_it() {
    let (disk, time) = (Slow::new(), Arc::new(Time::default()));
    let filter =
        WriteBack::new(Arc::new(disk.clone()), time.clone(), Rule::of(Policy::aipu(30 * S_NS)), cache(4, 1, 0));
    filter.set_bell(Arc::new(|| ()));
    ask(&filter, Request::Write { at: 0, buffer: contents(&[7; 160]), fua: false });
    ask(&filter, Request::Write { at: 160 * BLOCK, buffer: contents(&[7; 160]), fua: false });
    ask(&filter, Request::Trim { at: 0, len: 208 * BLOCK });
    while disk.step(&mut Random::new(1)) {}
    let group = filter.memory_bytes_max() / 4;
    assert_eq!((filter.memory_bytes(), filter.held_bytes()), (2 * group, 112 * BLOCK));
    filter.set_memory(group);
    for _ in 0..100 {
        filter.tick();
        while disk.step(&mut Random::new(1)) {}
    }
    assert_eq!(filter.memory_bytes(), group);
}

#[test]
fn memory_on_its_way_when_the_process_ended_goes_back_in_the_next_life() {
    let (disk, time, taking) = (Slow::new(), Arc::new(Time::default()), Arc::new(Taking::default()));
    let memory = SimMemory::volatile(Cache::memory_bytes(4 << 20), None);
    let memory = Arc::new(Scarce(memory, Mutex::new((Random::new(1), 0)), taking.clone()));
    let owner = Owner { store: [1; 16], boot_id: [2; 16], device_bytes: BLOCKS * BLOCK };
    let cache = Cache::create(memory.clone(), 4 << 20, &owner, [3; 16], Lifetime::Boot).unwrap();
    let rule = Rule::of(Policy::aipu(30 * S_NS));
    let filter = WriteBack::new(Arc::new(disk.clone()), time.clone(), rule, cache);
    ask(&filter, Request::Write { at: 0, buffer: contents(&[7; 300]), fua: false });
    ask(&filter, Request::Flush);
    while disk.step(&mut Random::new(1)) {}
    assert!(write(&filter, 3, 8).lock().is_some());
    for second in [2, 4] {
        time.0.store(second * S_NS, Ordering::Relaxed);
        filter.tick();
    }
    assert!(filter.tick(), "a group is half given back");
    assert!(taking.taken.lock().drain(..).sum::<u64>() < 1 << 20);
    drop(filter);
    let cache = Cache::open(memory, &owner).unwrap();
    let filter = WriteBack::new(Arc::new(disk), time, rule, cache);
    filter.adopt(true);
    let taken = taking.taken.lock().clone();
    assert!(taken.len() == 2 && taken.iter().all(|&len| len > 1 << 20), "the groups out of use, whole: {taken:?}");
    let read = ask(&filter, Request::Read { at: 3 * BLOCK, buffer: vec![0; BLOCK as usize] });
    assert_eq!(numbers(read.lock().as_ref().unwrap().as_ref().unwrap()), [8]);
}
