//! The machine that a report is of.
//!
//! Owns: a line with its processors, memory and kernel. Rules: what cannot be read is left out.

use std::fs;

/// Describes the machine in a line. What cannot be read is left out.
pub fn describe() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (processors, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let model = field(&processors, "model name").unwrap_or_else(|| std::env::consts::ARCH.into());
    let kib = field(&memory, "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    let memory = kib.map(|kib| format!(", {} GiB", (kib + (1 << 19)) >> 20)).unwrap_or_default();
    let kernel = rustix::system::uname();
    format!("{count} x {model}{memory}, {} {}", kernel.sysname().to_string_lossy(), kernel.release().to_string_lossy())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_machine_has_processors_memory_and_a_kernel() {
        let told = super::describe();
        assert!(told.contains(" x ") && told.contains(" GiB, ") && told.contains("Linux "), "{told}");
    }
}
