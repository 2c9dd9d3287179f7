// SPDX-License-Identifier: MIT OR Apache-2.0
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.TreeMap;

/** Two threads that count words, once for each line that is read. */
public class Crowd {
    private static final int THREADS = 2;
    private static final int WORDS = 30_000;
    private static int seen;

    private static void count() {
        TreeMap<String, Integer> counts = new TreeMap<>();
        long random = 1;
        for (int i = 0; i < WORDS; i++) {
            random = random * 6364136223846793005L + 1442695040888963407L;
            counts.merge("word" + (random >>> 50), 1, Integer::sum);
        }
        synchronized (Crowd.class) {
            seen += counts.size();
        }
    }

    public static void main(String[] args) throws IOException, InterruptedException {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        while (lines.readLine() != null) {
            Thread[] threads = new Thread[THREADS];
            for (int i = 0; i < THREADS; i++) {
                threads[i] = new Thread(Crowd::count);
                threads[i].start();
            }
            for (Thread thread : threads) {
                thread.join();
            }
            System.out.println("done");
            System.out.println("ready");
        }
    }
}
