package env

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// quotaPeriod is in how short a time a quota is kept: about a step of an engine here, so that one that has
// used its part waits no longer than that.
const quotaPeriod = 10 * time.Millisecond

// quota is a control group that bounds how much of the processors a process takes.
type quota struct{ dir string }

// Limit bounds how much of the processors the process takes from now on, with those that it started or starts:
// 0.5 is half of one. The error is [ErrUnsupported] where this user can't write control groups.
func (e *Env) Limit(p *Process, processors float64) error {
	q, err := newQuota(fmt.Sprintf("homing-%d-%s", os.Getpid(), p.Name), processors)
	if err != nil {
		return fmt.Errorf("%w: bounding %s's use of the processors: %w", ErrUnsupported, p.Name, err)
	}
	e.mu.Lock()
	e.quotas = append(e.quotas, q)
	e.mu.Unlock()
	return q.take(p.Pid())
}

// take takes in the processes of a process group.
func (q *quota) take(group int) error {
	processes, err := filepath.Glob("/proc/[0-9]*")
	for _, dir := range processes {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if of, gone := syscall.Getpgid(pid); gone != nil || of != group {
			continue
		}
		err = errors.Join(err, q.write("cgroup.procs", strconv.Itoa(pid)))
	}
	return err
}

// newQuota makes a control group, of version 2 or else 1.
func newQuota(name string, processors float64) (*quota, error) {
	period := quotaPeriod.Microseconds()
	most := int64(processors * float64(period))
	q, err := groupWith(filepath.Join("/sys/fs/cgroup", name), "cpu.max", fmt.Sprintf("%d %d", most, period))
	if err == nil {
		return q, nil
	}
	q, err1 := groupWith(filepath.Join("/sys/fs/cgroup/cpu", name),
		"cpu.cfs_period_us", strconv.FormatInt(period, 10), "cpu.cfs_quota_us", strconv.FormatInt(most, 10))
	if err1 == nil {
		return q, nil
	}
	return nil, errors.Join(err, err1)
}

// groupWith makes a control group with these settings, names and values in turn, or nothing.
func groupWith(dir string, settings ...string) (*quota, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	q := &quota{dir}
	for i := 0; i < len(settings); i += 2 {
		if err := q.write(settings[i], settings[i+1]); err != nil {
			q.close()
			return nil, err
		}
	}
	return q, nil
}

// write writes a setting that the group has: where no control groups are mounted, it has none.
func (q *quota) write(file, value string) error {
	f, err := os.OpenFile(filepath.Join(q.dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// close removes the group. A process's children may end a little after it; an empty group is left at worst.
func (q *quota) close() {
	for begun := time.Now(); time.Since(begun) < stopGrace; time.Sleep(50 * time.Millisecond) {
		if err := os.Remove(q.dir); err == nil || errors.Is(err, os.ErrNotExist) {
			return
		}
	}
}
