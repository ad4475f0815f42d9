//! The fuzz targets' entry points in the ordinary test run: random and mutated inputs, the same ones each time.

use super::rng::Rng;

/// Runs `entry` on `count` inputs of at most `most` bytes; a panic names the input.
pub(crate) fn smoke(count: usize, most: usize, entry: fn(&[u8])) {
    let mut rng = Rng::new(count as u64);
    let mut before: Vec<u8> = Vec::new();
    for turn in 0..count {
        let input = match turn % 4 {
            0 => noise(&mut rng, most),
            1 => sparse(&mut rng, most),
            2 => sparse(&mut rng, 64.min(most)),
            _ => mutated(&mut rng, &before),
        };
        let run = std::panic::catch_unwind(|| entry(&input));
        assert!(run.is_ok(), "input {turn}: {input:?}");
        before = input;
    }
}

fn noise(rng: &mut Rng, most: usize) -> Vec<u8> {
    let len = rng.below(most + 1);
    (0..len).map(|_| rng.below(256) as u8).collect()
}

/// Zeros with some bytes between: lengths and counts stay small, as in most that is well formed.
fn sparse(rng: &mut Rng, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; rng.below(most + 1)];
    for _ in 0..bytes.len().min(40) {
        let at = rng.below(bytes.len());
        bytes[at] = [1, 2, 3, 7, 64, 127, 128, 255, rng.below(256) as u8][rng.below(9)];
    }
    bytes
}

fn mutated(rng: &mut Rng, before: &[u8]) -> Vec<u8> {
    let mut bytes = before.to_vec();
    for _ in 0..1 + rng.below(4) {
        if bytes.is_empty() {
            break;
        }
        let at = rng.below(bytes.len());
        match rng.below(4) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes.truncate(at),
            2 => bytes.insert(at, rng.below(256) as u8),
            _ => bytes[at] = 255,
        }
    }
    bytes
}
